"""Compiles the modules of the hot path with mypyc, and the C modules, if this machine has a C compiler.

The extension modules are built beside their sources, where Python prefers them to the `.py` files. Without a compiler
Headway runs in plain Python, at about half the speed for a record that takes no time to handle.

The environment variable HEADWAY_COMPILE says what the build must do: with `1` it fails if the modules cannot be
compiled, and with `0` it compiles nothing. By default it compiles them if it can.
"""

import os
import shutil
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

C_MODULES = {
    f"headway.kafka.binding.{name}": f"headway/kafka/binding/{name}.c" for name in ("native_columns", "native_messages")
}
"""The modules that are written in C, with their sources. Headway also runs without them."""


class CompileHook(BuildHookInterface[Any]):
    """The build hook, which hatchling calls before it builds a wheel or an editable installation.

    The table `[tool.hatch.build.targets.wheel.hooks.custom.groups]` of pyproject.toml has the modules. Each group
    becomes one shared library, and the groups are compiled at the same time.
    """

    _copy: "tempfile.TemporaryDirectory[str] | None" = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the modules, and add them to the wheel.

        For an editable installation they are compiled in place. For a wheel they are compiled in a copy, because
        programs may be running in this checkout.
        """
        wanted = os.environ.get("HEADWAY_COMPILE", "")
        source = Path(self.root, "src")
        if version == "editable":
            remove_extensions(source)
        elif wanted != "0":
            self._copy = tempfile.TemporaryDirectory()  # `finalize` removes it, after the wheel has been written
            source = shutil.copytree(source, Path(self._copy.name, "src"), ignore=shutil.ignore_patterns("*.so"))
        if wanted == "0":
            return
        try:
            compile_modules(source, self.config["groups"])
        except (Exception, SystemExit) as error:
            remove_extensions(source)
            if wanted == "1":
                raise
            self.app.display_warning(
                f"Headway will run in plain Python, because its hot path was not compiled: {str(error)[:200]}"
            )
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            build_data["force_include"].update(
                {str(path): str(path.relative_to(source)) for path in extensions(source)}
            )

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copy in which the modules were compiled."""
        if self._copy:
            self._copy.cleanup()


def extensions(source: Path) -> list[Path]:
    """Return the extension modules below a folder."""
    return sorted(source.rglob("*.so"))


def remove_extensions(source: Path) -> None:
    """Remove the extension modules of an earlier build, so that no stale one is imported."""
    for path in extensions(source):
        path.unlink()


def compile_modules(source: Path, groups: dict[str, list[str]]) -> None:
    """Compile groups of modules in place. Raises an error if there is no C compiler, or if it fails."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if not shutil.which(compiler):
        raise RuntimeError(f"there is no C compiler {compiler!r}. Install one, or name one in the variable CC")
    # These imports are needed only if there is a compiler.
    from mypyc.build import mypycify  # noqa: PLC0415
    from setuptools import Extension  # type: ignore[import-untyped]  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]  # noqa: PLC0415
    from setuptools.dist import Distribution  # type: ignore[import-untyped]  # noqa: PLC0415

    every_module = [module for modules in groups.values() for module in modules]
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(source)
        try:
            extensions_to_build = mypycify(
                [
                    "--ignore-missing-imports",
                    "--follow-imports=silent",
                    "--explicit-package-bases",
                    f"--config-file={os.devnull}",
                    *every_module,
                ],
                opt_level="1",  # 2 and 3 take half as long again to compile, and gain nothing that can be measured
                debug_level="0",
                separate=[(modules, name) for name, modules in groups.items()],
                target_dir=folder,
            )
            for name, path in C_MODULES.items():
                extensions_to_build.append(Extension(name, [path], extra_compile_args=["-O2"]))
            command = build_ext(
                Distribution({"name": "headway", "ext_modules": extensions_to_build, "package_dir": {"": "."}})
            )
            command.inplace = True
            command.parallel = os.cpu_count()
            command.build_temp = command.build_lib = folder
            command.ensure_finalized()
            command.run()
        finally:
            os.chdir(here)
