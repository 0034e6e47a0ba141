"""Functions that Python code calls, with the settings of the commands beside them, and what the commands print.

Functions import jax, flax and TensorFlow when they are called: importing a module of this package loads none of them,
so that --help and mistakes on the command line answer at once.
"""
