"""One process of a run: the hosts it runs beside, its output and its start time."""

import time
from dataclasses import dataclass

import jax

from xlnet_jax.costs.address_space import demand_address_space
from xlnet_jax.printing import Console
from xlnet_jax.settings.config import RunConfig
from xlnet_jax.training.run.hosts import Hosts
from xlnet_jax.training.run.runtime import demand_tpu
from xlnet_jax.training.watch.wandb import demand_wandb


@dataclass(frozen=True)
class Process:
    """Process 0 prints and writes files for all; the others write their part of the checkpoints only."""

    hosts: Hosts
    console: Console
    """silent in all processes but the first"""
    began: float
    """by time.time()"""
    is_command: bool = False
    """True where the process does nothing but this run: a second signal then ends it at once"""

    @classmethod
    def begin(cls, config: RunConfig, hosts: Hosts, is_command: bool = False) -> "Process":
        """Find the devices, together with all other processes.

        Raises InputError if the settings ask for a TPU that is not there, for Weights & Biases without its package, or
        if there is too little address space.
        """
        demand_address_space()
        began = time.time()
        if config.log.wandb and hosts.first:
            demand_wandb(config.log.wandb)
        jax.devices()  # all processes must ask at the same time
        if config.tpu:
            demand_tpu()
        console = Console(soft_wrap=True, highlight=False, markup=False, quiet=not hosts.first)
        return cls(hosts, console, began, is_command)
