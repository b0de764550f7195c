"""docs/atomics.md has a row for each word that is stored with release order or stronger."""
import re
from pathlib import Path

PAGE = "docs/atomics.md"
FOLDERS = ("core/src", "core/internal", "core/include/lockstep")
LAYERS = ("base", "shm", "engine", "flight", "data")
STORE = re.compile(r"(\w+)(?:\[[^\]]*\])?(?:\([^()]*\))?(?:\.|->)(?:store|exchange|fetch_\w+|compare_exchange_\w+)\("
                   r"[^;]*?memory_order_(?:release|acq_rel|seq_cst)")


def check(root: Path):
    page = root / PAGE
    rows = [line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("| `")]
    for folder in (root / folder / layer for folder in FOLDERS for layer in LAYERS):
        for path in sorted((*folder.rglob("*.h"), *folder.rglob("*.cpp"))):
            text = path.read_text()
            for match in STORE.finditer(text):
                if not any(f"`{match[1]}`" in row and f"`{path.name}`" in row for row in rows):
                    line = text.count("\n", 0, match.start()) + 1
                    yield path, line, f"`{match[1]}` has no row in {PAGE}: which load waits for this store, and what does it guard?"
