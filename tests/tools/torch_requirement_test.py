"""The wheel says which torch it fits: python/build_hooks/torch_requirement.py."""
import importlib.util
import pathlib
import tempfile
import unittest
from unittest import mock

HOOK = pathlib.Path(__file__).resolve().parents[2] / "python/build_hooks/torch_requirement.py"


def load_hook():
    spec = importlib.util.spec_from_file_location("torch_requirement", HOOK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TorchRequirement(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.hook = load_hook()

    def requirement(self):
        with mock.patch.object(self.hook, "torch_folder", return_value=self.folder):
            return self.hook.dynamic_metadata("dependencies")

    def test_it_is_the_release_that_the_extension_is_built_with(self):
        for version in ("2.15.0", "2.15.0+cpu", "2.15.0+cu130"):
            (self.folder / "version.py").write_text(f"__version__ = '{version}'\ndebug = False\n", encoding="utf-8")
            self.assertEqual(self.requirement(), ["torch==2.15.0"])

    def test_without_torch_it_is_all_supported_releases(self):
        self.assertEqual(self.requirement(), ["torch>=2.11,<2.16"])

    def test_it_makes_no_other_field(self):
        with self.assertRaises(ValueError):
            self.hook.dynamic_metadata("version")
        with self.assertRaises(ValueError):
            self.hook.dynamic_metadata("dependencies", {"torch": "2.0"})


if __name__ == "__main__":
    unittest.main()
