from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlruntime.errors import ConfigError
from rlruntime.registry import build, import_object, names_of, register, resolve
from rlruntime.spec.base import PositiveInt, SpecModel


@dataclass
class Part:
    type: str
    config: Mapping[str, Any] = field(default_factory=dict)


class InnerConfig(SpecModel):
    num_layers: PositiveInt = 2


class HeadConfig(SpecModel):
    hidden_size: PositiveInt
    inner: InnerConfig = InnerConfig()


@register("testpart", "Head")
class Head:
    Config = HeadConfig

    def __init__(self, config: HeadConfig, num_inputs: int) -> None:
        self.config, self.num_inputs = config, num_inputs


@register("testpart", "Plain")
def make_plain(num_inputs: int, scale: float = 1.0) -> tuple[int, float]:
    if scale < 0:
        raise TypeError("raised inside the part")
    return num_inputs, scale


@pytest.fixture
def user_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder on the import path, as the one beside a manifest is."""
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("usercode_")]:
        del sys.modules[name]


def message_of(call: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_registered_name_resolves_to_its_object() -> None:
    assert resolve("testpart", "Head") is Head


def test_class_with_config_gets_the_validated_model_then_the_arguments() -> None:
    head = build("testpart", Part("Head", {"hiddenSize": 8, "inner": {"numLayers": 3}}), 5, field="spec.training.head")
    assert (head.config.hidden_size, head.config.inner.num_layers, head.num_inputs) == (8, 3, 5)


def test_function_without_config_gets_the_config_as_keywords() -> None:
    assert build("testpart", Part("Plain", {"scale": 2.5}), 4, field="x") == (4, 2.5)


def test_unknown_name_names_the_nearest_one_and_the_field() -> None:
    assert message_of(resolve, "testpart", "Haed", field="spec.training.head") == (
        "spec.training.head.type: there is no testpart of this name (got 'Haed'); did you mean 'Head'? "
        "(or package.module:Object)"
    )


def test_unknown_name_without_a_near_one_lists_what_there_is() -> None:
    assert "use Head, Plain (or package.module:Object)" in message_of(resolve, "testpart", "Zzzzzz")


def test_misspelt_setting_names_the_nearest_one_with_its_path() -> None:
    message = message_of(build, "testpart", Part("Head", {"hidenSize": 8}), 5, field="spec.training.head")
    assert "spec.training.head.config.h" in message
    nested = message_of(
        build, "testpart", Part("Head", {"hiddenSize": 8, "inner": {"numLayer": 1}}), 5, field="spec.training.head"
    )
    assert nested.startswith("spec.training.head.config.inner.numLayer: there is no such")
    assert "did you mean 'numLayers'?" in nested


def test_wrong_type_says_field_and_value() -> None:
    message = message_of(build, "testpart", Part("Head", {"hiddenSize": "8"}), 5, field="spec.training.head")
    assert message.startswith("spec.training.head.config.hiddenSize: ")
    assert "(got '8')" in message


def test_missing_setting_is_named() -> None:
    message = message_of(build, "testpart", Part("Head"), 5, field="spec.training.head")
    assert message.startswith("spec.training.head.config.hiddenSize: ")
    assert "missing" in message


def test_keyword_that_a_function_does_not_take_names_the_nearest_one() -> None:
    message = message_of(build, "testpart", Part("Plain", {"scael": 2.0}), 4, field="f")
    assert message.startswith("f.config.scael: ")
    assert "did you mean 'scale'?" in message


def test_argument_of_the_runtime_is_no_setting() -> None:
    assert "takes no such setting" in message_of(build, "testpart", Part("Plain", {"num_inputs": 1}), 4, field="f")


def test_type_error_inside_a_part_stays_its_own() -> None:
    with pytest.raises(TypeError, match="raised inside the part"):
        build("testpart", Part("Plain", {"scale": -1.0}), 4, field="f")


def test_module_beside_the_manifest_is_imported_by_path(user_folder: Path) -> None:
    (user_folder / "usercode_parts.py").write_text("class Outer:\n    class Inner:\n        pass\n")
    assert resolve("testpart", "usercode_parts:Outer.Inner").__name__ == "Inner"


def test_missing_module_says_to_install_or_to_put_it_beside_the_manifest() -> None:
    assert message_of(resolve, "testpart", "usercode_absent.part:Net", field="spec.training.network") == (
        "spec.training.network.type: there is no module 'usercode_absent' (got 'usercode_absent.part:Net'); "
        "install the package that has it, or put it beside the manifest"
    )


def test_module_that_needs_another_one_names_that_one(user_folder: Path) -> None:
    (user_folder / "usercode_needs.py").write_text("import not_installed_anywhere\n")
    message = message_of(import_object, "usercode_needs:Net")
    assert "the module 'usercode_needs' needs 'not_installed_anywhere', which is not installed" in message


def test_module_that_raises_on_import_says_what(user_folder: Path) -> None:
    (user_folder / "usercode_raises.py").write_text("raise ValueError('first\\nsecond')\n")
    assert "raised ValueError on import: first second" in message_of(import_object, "usercode_raises:Net")


def test_missing_object_names_the_nearest_one(user_folder: Path) -> None:
    (user_folder / "usercode_net.py").write_text("class Network:\n    pass\n")
    message = message_of(import_object, "usercode_net:Netwrok")
    assert "has no 'Netwrok'" in message
    assert "did you mean 'Network'?" in message


def test_entry_point_of_an_installed_distribution_is_found(user_folder: Path) -> None:
    info = user_folder / "usercode_dist-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: usercode-dist\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rljob.components]\ntestpart.Offered = usercode_offer:make\n")
    (user_folder / "usercode_offer.py").write_text("def make():\n    return 'made'\n")
    assert build("testpart", Part("Offered"), field="f") == "made"
    assert names_of("testpart") == ["Head", "Offered", "Plain"]


def test_second_object_of_one_name_is_refused_and_a_reload_is_not() -> None:
    register("testpart", "Head")(Head)
    with pytest.raises(ValueError, match="testpart 'Head' is registered already"):
        register("testpart", "Head")(make_plain)


def test_built_in_loggers_are_known_without_an_import_by_the_caller() -> None:
    assert {"MLflow", "TensorBoard", "WandB"} <= set(names_of("logger"))
