"""tools/check_layers.py finds forbidden includes and lets the allowed ones pass."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools/check_layers.py"
CMAKE = """
lockstep_layer(base)  # lockstep_layer(store)
lockstep_layer(store SUBFOLDERS tcp
  PUBLIC lockstep::base)
lockstep_layer(net HEADERS shared.h PUBLIC lockstep::base PRIVATE lockstep::store)
lockstep_layer(engine PRIVATE lockstep::store)
lockstep_layer(c10d TORCH PUBLIC lockstep::base)
"""


class CheckLayers(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.root = pathlib.Path(self.scratch.name)
        self.write("core/CMakeLists.txt", CMAKE)
        self.write("vision/CMakeLists.txt", "lockstep_layer(image PUBLIC lockstep::base)")
        for path in ("core/src/base/a.h", "core/internal/store/tcp/wire.h", "core/internal/net/link.h", "core/src/store/tcp/own.h", "core/include/lockstep/base/status.h",
                     "core/include/lockstep/store/store.h", "core/include/lockstep/net/net.h", "core/include/lockstep/shared.h"):
            self.write(path, "")

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def check(self):
        return subprocess.run([sys.executable, CHECK, self.root], capture_output=True, text=True, check=False)

    def expect(self, path, include, *, why=None):
        self.write(path, f'#pragma once\n#include "{include}"\n')
        result = self.check()
        (self.root / path).unlink()
        if why is None:
            self.assertEqual((result.returncode, result.stdout), (0, ""))
        else:
            self.assertEqual(result.returncode, 1)
            self.assertIn(f'{path}:2: "{include}"', result.stdout)
            self.assertIn(why, result.stdout)

    def test_own_and_named_layers_are_seen(self):
        self.expect("core/src/store/tcp/b.cpp", "own.h")
        self.expect("core/src/store/keys/b.cpp", "store/tcp/wire.h")
        self.expect("core/src/store/tcp/b.cpp", "lockstep/base/status.h")
        self.expect("core/src/engine/b.cpp", "store/tcp/wire.h")

    def test_what_is_private_to_a_layer_is_not_seen(self):
        self.expect("core/src/engine/b.cpp", "store/tcp/own.h", why="this header is private to layer 'store'")

    def test_what_other_layers_see_brings_nothing_private(self):
        self.expect("core/internal/store/tcp/b.h", "store/tcp/own.h", why="a header for other layers includes one that is private")

    def test_a_component_sees_those_below_it(self):
        self.expect("vision/src/image/b.cpp", "lockstep/base/status.h")
        self.write("vision/include/lockstep/image/decode.h", "")
        self.expect("core/src/store/b.cpp", "lockstep/image/decode.h", why="none that it names is 'image'")

    def test_public_layers_of_a_named_layer_are_seen(self):
        self.expect("core/src/engine/b.cpp", "lockstep/base/status.h")

    def test_higher_layers_are_not_seen(self):
        self.expect("core/src/base/b.cpp", "lockstep/store/store.h", why="layer 'base' sees no other layer")

    def test_layers_that_are_not_named_are_not_seen(self):
        self.expect("core/src/store/tcp/b.cpp", "net/link.h", why="none that it names is 'net'")
        self.expect("core/src/engine/b.cpp", "lockstep/net/net.h", why="none that it names is 'net'")

    def test_a_header_outside_its_layers_folder_belongs_to_that_layer(self):
        self.expect("core/src/store/tcp/b.cpp", "lockstep/shared.h", why="none that it names is 'net'")
        self.expect("core/src/net/b.cpp", "lockstep/shared.h")

    def test_public_headers_see_only_layers_named_public(self):
        self.expect("core/include/lockstep/net/b.h", "lockstep/base/status.h")
        self.expect("core/include/lockstep/net/b.h", "lockstep/store/store.h", why="none that it names PUBLIC is 'store'")
        self.expect("core/include/lockstep/net/b.h", "net/link.h", why="a public header includes one that is not")

    def test_programs_see_the_layers_that_they_link_and_nobody_sees_programs(self):
        self.write("core/src/cli/CMakeLists.txt", "target_link_libraries(lockstep_cli PRIVATE lockstep::store)  # lockstep::net")
        self.write("core/src/cli/options.h", "")
        self.expect("core/src/cli/b.cpp", "cli/options.h")
        self.expect("core/src/cli/b.cpp", "store/tcp/wire.h")
        self.expect("core/src/cli/b.cpp", "lockstep/base/status.h")
        self.expect("core/src/cli/b.cpp", "net/link.h", why="none that it names is 'net'")
        self.expect("core/src/engine/b.cpp", "cli/options.h", why="this header is private to layer 'programs in core/src/cli'")

    def test_layers_without_torch_see_none_of_its_headers(self):
        self.expect("core/src/c10d/b.cpp", "torch/torch.h")
        self.expect("core/src/base/b.cpp", "torch/torch.h", why="layer 'base' is free of LibTorch; this is a header of it")
        self.expect("core/include/lockstep/net/b.h", "ATen/ATen.h", why="layer 'net' is free of LibTorch")

    def test_programs_see_no_header_of_torch_through_another_one(self):
        self.write("core/src/cli/CMakeLists.txt", "target_link_libraries(lockstep_cli PRIVATE lockstep::c10d)")
        self.write("core/internal/c10d/tensors.h", "#include <c10/core/Device.h>\n")
        self.write("core/internal/c10d/work.h", '#include "c10d/tensors.h"\n#include "c10d/work.h"\n')
        self.write("core/internal/c10d/names.h", "#include <string>\n")
        self.expect("core/src/cli/b.cpp", "c10d/names.h")
        self.expect("core/src/cli/b.cpp", "c10d/work.h", why="this brings c10/core/Device.h, a header of it")

    def test_examples_see_only_public_headers(self):
        self.expect("examples/b.cpp", "lockstep/net/net.h")
        self.expect("examples/b.cpp", "store/tcp/wire.h", why="examples include public headers only")

    def test_the_python_package_sees_only_public_headers(self):
        self.expect("python/b.cpp", "lockstep/net/net.h")
        self.expect("python/b.cpp", "store/tcp/wire.h", why="the Python package includes public headers only")


if __name__ == "__main__":
    unittest.main()
