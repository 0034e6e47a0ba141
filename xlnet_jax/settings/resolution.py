"""Settings while they are being resolved: what the user gave stays, and facts decide the rest.

Each step of a run's preparation is a function from facts (a text, weights, a device) to values, by dotted names such as
`data.batch_size`. `Resolution` puts the values of all steps together, one step after the other. It alone knows what the
user gave.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Generic, TypeVar, cast

from xlnet_jax.errors import InputError
from xlnet_jax.settings.fields import differences, flatten, with_values

T = TypeVar("T")
Values = Mapping[str, Any]
"""Settings by dotted names in Python's spelling."""


def record_given(config: T, names: Iterable[str]) -> T:
    """Return settings that record these, by dotted names, as given by the user, besides those that they record."""
    known = cast(Any, config).given
    return dataclasses.replace(cast(Any, config), given=known | frozenset(names))


class Resolution(Generic[T]):
    """Settings between the command line, or Python's keywords, and the run.

    config: the settings so far. log: what was chosen for the user, one line for each reason, as a run prints it.
    """

    def __init__(self, config: T, given: Collection[str] = ()):
        """given: dotted names of the settings that the user gave."""
        self.config = config
        self._given = frozenset(given)
        self._chosen: dict[str, dict[str, str]] = {}

    @classmethod
    def of(cls, config: T, usual: T | None = None) -> "Resolution[T]":
        """Return the resolution of settings of which the user gave those that they record, and those that differ from
        the usual settings, because Python code may replace fields of a dataclass."""
        differing = (setting.python_name for setting, _ in differences(config, usual)) if usual is not None else ()
        return cls(config, {*cast(Any, config).given, *differing})

    def branch(self) -> "Resolution[T]":
        """Return a copy, which goes its own way from here."""
        return Resolution(self.config, self._given)

    def give(self, asked: Any, usual: Any, *sections: str) -> "Resolution[T]":
        """Put the sections of another dataclass on top, such as `data` of a command's own settings, as far as the user
        gave them there. usual: its defaults. Return self."""
        names = Resolution.of(asked, usual)._given
        values = {s.python_name: s.value for s in flatten(asked) if s.python_name.partition(".")[0] in sections}
        values = {name: value for name, value in values.items() if name in names}
        self._given |= values.keys()
        self.set(values)
        return self

    def is_open(self, *names: str) -> bool:
        """Return True if the user gave none of these."""
        return self._given.isdisjoint(names)

    def refuse(self, name: str, mistake: InputError) -> None:
        """Raise this error if the user gave this setting."""
        if not self.is_open(name):
            raise mistake

    def require(self, values: Values, says: Callable[[Any], str]) -> None:
        """Set values that a fact fixes. says: returns the fact in words, for a value.

        Raises InputError if the user gave another value for one of them.
        """
        for name, value in values.items():
            if name in self._given and (asked := self._value_of(name)) != value:
                raise InputError(name, asked, f": {says(value)}")
        self.set(values)

    def choose(self, values: Values, why: str = "") -> dict[str, Any]:
        """Set those of these values that the user did not give; return those that change. why: the reason, which
        completes "…, as "; the log has the changes with it; "" = they follow from others."""
        values = {name: value for name, value in values.items() if name not in self._given}
        changed = {name: value for name, value in values.items() if value != self._value_of(name)}
        self.set(changed, why)
        return changed

    def choose_first(
        self,
        options: Iterable[Values],
        suits: Callable[[T], bool],
        why: str = "",
        follow: Callable[[T], Values] = lambda config: {},
        together: Collection[str] = (),
    ) -> None:
        """Choose the first of these options that is consistent with what the user gave; the last if none is.

        follow: returns values that follow from an option. together: settings that all stay as they are if the user gave
        one of them.
        """
        kept = self._given | (set() if self.is_open(*together) else set(together))
        for option in options:
            trial = Resolution(self.config, kept)
            changed = trial.choose(option)
            following = trial.choose(follow(trial.config))
            if suits(trial.config):
                break
        self.set(changed, why)
        self.set(following)

    def set(self, values: Values, why: str = "") -> None:
        """Set what a setting comes to, whether the user gave it or not: the full path of a folder, the steps of epochs.
        why: as in `choose`."""
        if not values:
            return
        if why:
            flags = self._chosen.setdefault(why, {})
            for name, value in values.items():
                flag = f"--{name.replace('_', '-')}"
                flags[flag] = f"{flag} {_shown(value)} (not {_shown(self._value_of(name))})"
        self.config = with_values(self.config, values)

    @property
    def log(self) -> list[str]:
        """What was chosen: a line for each reason, with the settings as flags."""
        return [f"chosen      {', '.join(flags.values())}, as {why}" for why, flags in self._chosen.items()]

    def final(self) -> T:
        """Return the resolved settings, which record nothing as given: nobody replaces them or asks afterwards."""
        return cast(T, dataclasses.replace(cast(Any, self.config), given=frozenset()))

    def _value_of(self, name: str) -> Any:
        value: Any = self.config
        for part in name.split("."):
            value = getattr(value, part)
        return value


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_shown, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
