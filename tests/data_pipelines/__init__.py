"""What tests of the pipeline share."""

from functools import partial

from data_pipelines.prepare.runners import run_here

ALONE = partial(run_here, processes=1)
"""A runner that works in the process of the test, which is quicker for small texts"""
