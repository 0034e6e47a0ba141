"""What every command does with the errors of the library."""

import pytest

from xlnet_jax.api import command
from xlnet_jax.errors import InputError


class Special(InputError):
    exit_code = 3


def test_names_of_arguments_become_flags_and_the_error_stays_what_it_was():
    @command.naming_flags
    def main(argv):
        raise Special("`max_len` 0 and `data.seq_len` 8, `git log` and 'max_len' in text.txt")

    with pytest.raises(Special) as mistake:
        main([])
    assert str(mistake.value) == "--max-len 0 and --data.seq-len 8, `git log` and 'max_len' in text.txt"
    assert mistake.value.exit_code == 3
