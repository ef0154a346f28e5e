"""A choice is a configured, frozen value such as `Kronecker()` or `FunctionSpace()`: never a class, string or flag."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, TypeVar

from dnn2gp.support.errors import InputError

C = TypeVar("C", bound="Choice")


class Choice(ABC):
    """One of several ways to do something, with its options: the base of a frozen dataclass with one field per option.

    An abstract subclass (`Structure`, `Inference`) defines what every such choice must provide and holds the registry
    `kinds`. A final subclass has a `name`, under which it is registered: that is how files refer to it. Every option
    has a default and a value that JSON can hold, unless `options` and `from_options` translate it.
    """

    name: ClassVar[str]
    kinds: ClassVar[dict[str, type[Any]]]
    """Every final subclass by its name."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            cls.kinds[cls.name] = cls

    def options(self) -> dict[str, Any]:
        """The options as JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)} if is_dataclass(self) else {}

    @classmethod
    def from_options(cls: type[C], options: Mapping[str, Any]) -> C:
        """The inverse of `options`."""
        return cls(**options)

    def encoded(self) -> str | dict[str, Any]:
        """The choice for a file: its name, together with its options if it has any."""
        options = self.options()
        return {"name": self.name, **options} if options else self.name

    @classmethod
    def decoded(cls: type[C], value: object) -> C:
        """The inverse of `encoded`; an `InputError` names what is unknown."""
        name, options = (value, {}) if isinstance(value, str) else (None, {})
        if isinstance(value, Mapping):
            options = {str(key): own for key, own in value.items()}
            name = options.pop("name", None)
        if not isinstance(name, str) or name not in cls.kinds:
            raise InputError(
                f"{cls.__name__}: expected one of {sorted(cls.kinds)}; got {value!r}. Import the module that defines "
                "it first."
            )
        try:
            return cls.kinds[name].from_options(options)
        except (TypeError, KeyError) as error:
            raise InputError(f"{cls.kinds[name].__name__}: the options {options} are not valid: {error}.") from error

    @classmethod
    def checked(cls: type[C], argument: str, value: object) -> C:
        """`value`, if it is such a choice; otherwise an `InputError` that names the argument."""
        if isinstance(value, cls):
            return value
        if isinstance(value, type) and issubclass(value, cls):
            got = f"the class {value.__name__}. Write {argument}={value.__name__}()"
        else:
            got = repr(value)
        known = ", ".join(f"{kind.__name__}()" for kind in cls.kinds.values())
        raise InputError(f"{argument}: expected a configured value, one of {known}; got {got}.")
