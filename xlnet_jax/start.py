"""Start a command from its module, which `python -m` runs."""

from xlnet_jax.storage.import_path import leave_current_folder


def start(command: str, module: str) -> None:
    """Run a command if Python runs the calling module as a program. module: its `__name__`.

    Raises ImportError if it is imported: it would hide the public function of its name, such as `xlnet_jax.generate`.
    """
    if module == "__main__":
        leave_current_folder()
        from xlnet_jax.__main__ import COMMANDS

        COMMANDS[command].run()
    elif module != "__mp_main__":  # a child process imports the program of its parent by this name
        raise ImportError(f"{module} is a program: run python -m {module.removesuffix('.__main__')}")
