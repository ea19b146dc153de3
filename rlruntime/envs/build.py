"""One copy of an environment from its `EnvConfig`, with errors that say what to install or to change."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from rlruntime.envs.mujoco_warnings import hear_mujoco
from rlruntime.envs.spaces import ID_FIELD
from rlruntime.errors import ConfigError, MissingExtraError, RLJobError

if TYPE_CHECKING:  # pydantic would double the time that a worker process takes to start
    from rlruntime.spec.training.component import Component
    from rlruntime.spec.training.env import EnvConfig

FACTORY_FIELD = "spec.training.env.factory"
IMPORT_FIELD = "spec.training.env.import"
KWARGS_FIELD = "spec.training.env.kwargs"
WRAPPERS_FIELD = "spec.training.env.wrappers"

# Which package brings the ids that match, and the module that registers them.
_PACKAGES = (
    (r"ALE/.*|.*NoFrameskip-v\d+", "ale-py", "ale_py"),
    (r"(MiniGrid|BabyAI)-.*", "minigrid", "minigrid"),
    (r"MiniWorld-.*", "miniworld", "miniworld"),
    (r"highway-.*|(merge|roundabout|parking|intersection|racetrack)-.*", "highway-env", "highway_env"),
    (
        r"Fetch.*|Hand.*|AdroitHand.*|FrankaKitchen-.*|PointMaze_.*|AntMaze_.*",
        "gymnasium-robotics",
        "gymnasium_robotics",
    ),
    (r"procgen.*", "procgen", "procgen"),
    (r"mo-.*", "mo-gymnasium", "mo_gymnasium"),
    (r"dm_control/.*", "shimmy[dm-control]", "shimmy"),
)


def env_field(config: EnvConfig) -> str:
    """Return the manifest field that names the environment."""
    return FACTORY_FIELD if config.factory is not None else ID_FIELD


def env_name(config: EnvConfig) -> str:
    """Return the id or the factory."""
    name = config.factory if config.factory is not None else config.id
    assert name is not None
    return name


def import_modules(config: EnvConfig) -> None:
    """Import the modules of ``import``.

    Raises:
        ConfigError: one is not there or can't be imported.
    """
    for name in config.imports:
        _import(name, IMPORT_FIELD)


def make_single_env(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """Return one new copy: the registered environment or the factory's, its time limit, then the wrappers in order.

    Gymnasium's passive checker is left out; `checks.probe` does its work once. ``max_episode_steps`` counts steps below
    the wrappers, as Gymnasium's own limit does.

    Args:
        config: the environment.
        render_mode: as in ``gymnasium.make``; None draws nothing.

    Raises:
        ConfigError: unknown id, missing package, wrong ``kwargs``, or a factory or wrapper that doesn't work.
    """
    import_modules(config)
    env = _from_factory(config, render_mode) if config.factory is not None else _from_id(config, render_mode)
    for i, wrapper in enumerate(config.wrappers):
        env = _wrap(env, wrapper, f"{WRAPPERS_FIELD}[{i}]")
    if render_mode is not None and env.render_mode != render_mode:
        env.close()
        raise ConfigError(
            f"the environment does not render as {render_mode}",
            field=env_field(config),
            value=env_name(config),
            remedy="let it take render_mode and keep it as an attribute",
        )
    return env


def find_spec(config: EnvConfig) -> gym.envs.registration.EnvSpec:
    """Return Gymnasium's registration of ``id``.

    Raises:
        ConfigError: there is none; names the nearest one, or the package to install.
    """
    import_modules(config)
    name = env_name(config)
    module, colon, bare = name.rpartition(":")
    if colon:
        _import(module, ID_FIELD)
    try:
        return gym.spec(bare)
    except gym.error.Error as error:
        raise _unknown_id(bare) from error


def load_object(path: str, field: str) -> Any:
    """Return the object at ``package.module:name``.

    Raises:
        ConfigError: the module can't be imported or lacks the name.
    """
    module_name, _, attribute = path.partition(":")
    value: Any = _import(module_name, field, value=path)
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = [name for name in dir(value) if not name.startswith("_")]
            nearest = difflib.get_close_matches(part, names, n=1)
            raise ConfigError(
                f"{module_name} has no {part!r}",
                field=field,
                value=path,
                remedy=f"did you mean {nearest[0]!r}?" if nearest else "check the name",
            )
        value = getattr(value, part)
    return value


def call_with_kwargs(function: Callable[..., Any], kwargs: dict[str, Any], *, what: str, field: str) -> Any:
    """Call, and say which keyword argument doesn't fit; other exceptions become a ConfigError with their own words.

    Raises:
        ConfigError: the call failed.
    """
    _check_signature(function, kwargs, what=what, field=field)
    try:
        return function(**kwargs)
    except RLJobError:
        raise
    except gym.error.DependencyNotInstalled as error:
        raise missing_dependency(error, field) from error
    except Exception as error:
        raise ConfigError(
            f"{what} raised {type(error).__name__}: {error}", field=field, remedy="check its kwargs and its code"
        ) from error


def missing_dependency(error: Exception, field: str = ID_FIELD) -> ConfigError:
    """Return the error for a package that an environment lacks, with what to install."""
    words = str(error)
    if "mujoco" in words.lower():
        return MissingExtraError("the environment", package="mujoco", extra="rljob[mujoco]", field=field)
    commands = re.findall(r"`(pip install [^`]+)`", words)
    return ConfigError(
        f"the environment needs a package that is not installed: {words}",
        field=field,
        remedy=" && ".join(commands) if commands else "install it",
    )


def missing_module(error: ModuleNotFoundError, field: str = ID_FIELD) -> ConfigError:
    """Return the error for a module that an environment imports and that is not there."""
    if error.name == "mujoco":
        return MissingExtraError("the environment", package="mujoco", extra="rljob[mujoco]", field=field)
    return ConfigError(
        f"the environment needs the module {error.name!r}, which is not installed",
        field=field,
        remedy="install the package that brings it",
    )


def _from_id(config: EnvConfig, render_mode: str | None) -> gym.Env[Any, Any]:
    spec = find_spec(config)
    hear_mujoco(spec.entry_point)
    kwargs: dict[str, Any] = dict(config.kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    try:
        env: gym.Env[Any, Any] = gym.make(spec, disable_env_checker=True, **kwargs)
        return env
    except gym.error.DependencyNotInstalled as error:
        raise missing_dependency(error) from error
    except ModuleNotFoundError as error:
        raise missing_module(error) from error
    except TypeError as error:
        raise _wrong_kwargs(spec, config, error) from error
    except RLJobError:
        raise
    except Exception as error:
        raise ConfigError(
            f"building {spec.id} raised {type(error).__name__}: {error}",
            field=KWARGS_FIELD if config.kwargs else ID_FIELD,
            remedy="check its kwargs",
        ) from error


def _from_factory(config: EnvConfig, render_mode: str | None) -> gym.Env[Any, Any]:
    assert config.factory is not None
    factory = load_object(config.factory, FACTORY_FIELD)
    hear_mujoco()
    kwargs = dict(config.kwargs)
    if render_mode is not None and "render_mode" in parameters(factory):
        kwargs["render_mode"] = render_mode
    env: Any = call_with_kwargs(factory, kwargs, what=f"the factory {config.factory}", field=FACTORY_FIELD)
    if not isinstance(env, gym.Env):
        raise ConfigError(
            f"the factory returned a {type(env).__name__}, not a gymnasium.Env",
            field=FACTORY_FIELD,
            value=config.factory,
            remedy="return one new gymnasium.Env per call; for a vector environment set backend: VectorEntryPoint"
            if isinstance(env, gym.vector.VectorEnv)
            else "return one new gymnasium.Env per call",
        )
    if config.max_episode_steps is not None:
        env = gym.wrappers.TimeLimit(env, config.max_episode_steps)
    assert isinstance(env, gym.Env)
    return env


def _wrap(env: gym.Env[Any, Any], wrapper: Component, field: str) -> gym.Env[Any, Any]:
    if ":" in wrapper.type:
        cls = load_object(wrapper.type, field)
    else:
        cls = getattr(gym.wrappers, wrapper.type, None)
        if cls is None:
            nearest = difflib.get_close_matches(wrapper.type, gym.wrappers.__all__, n=1)
            hint = (
                f"did you mean {nearest[0]!r}?"
                if nearest
                else "name one of gymnasium.wrappers, or package.module:Class"
            )
            raise ConfigError("there is no such wrapper", field=field, value=wrapper.type, remedy=hint)
    wrapped = call_with_kwargs(cls, {"env": env, **wrapper.config}, what=f"the wrapper {wrapper.type}", field=field)
    if not isinstance(wrapped, gym.Env):
        raise ConfigError(f"{wrapper.type} returned no environment", field=field, remedy="name a gymnasium.Wrapper")
    return wrapped


def _import(name: str, field: str, value: str | None = None) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        own = name == missing or name.startswith(f"{missing}.")
        problem = f"there is no module {missing!r}" if own else f"importing {name} needs {missing!r}, which is missing"
        remedy = "install its package, or put the file beside the manifest" if own else f"install {missing}"
        raise ConfigError(problem, field=field, value=value or name, remedy=remedy) from error
    except Exception as error:
        raise ConfigError(
            f"importing {name} raised {type(error).__name__}: {error}",
            field=field,
            value=value or name,
            remedy="try it with: python -c 'import " + name + "'",
        ) from error


def _unknown_id(name: str) -> ConfigError:
    for pattern, package, module in _PACKAGES:
        if re.fullmatch(pattern, name):
            imported = f"put {module} in {IMPORT_FIELD}"
            installed = importlib.util.find_spec(module) is not None
            return ConfigError(
                "no such environment is registered",
                field=ID_FIELD,
                value=name,
                remedy=imported if installed else f"pip install {package} and {imported}",
            )
    nearest = difflib.get_close_matches(name, list(gym.registry), n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}? or " if nearest else ""
    return ConfigError(
        "no such environment is registered",
        field=ID_FIELD,
        value=name,
        remedy=f"{hint}put the module that registers it in {IMPORT_FIELD}",
    )


def _wrong_kwargs(spec: gym.envs.registration.EnvSpec, config: EnvConfig, error: TypeError) -> ConfigError:
    entry: Any = spec.entry_point
    creator = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
    if creator is not None:
        try:
            _check_signature(creator, {**spec.kwargs, **config.kwargs}, what=spec.id, field=KWARGS_FIELD)
        except ConfigError as better:
            return better
    return ConfigError(
        f"building {spec.id} raised TypeError: {error}",
        field=KWARGS_FIELD,
        value=config.kwargs,
        remedy="check names and types",
    )


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return a callable's parameters; none where it doesn't say."""
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}


def _check_signature(function: Callable[..., Any], kwargs: dict[str, Any], *, what: str, field: str) -> None:
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
        return
    for name in kwargs:
        if name not in known:
            nearest = difflib.get_close_matches(name, list(known), n=1)
            listed = ", ".join(key for key in known if key != "env") or "none"
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"it takes {listed}"
            raise ConfigError(f"{what} takes no argument {name!r}", field=field, remedy=hint)
