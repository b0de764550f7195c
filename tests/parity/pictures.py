"""Common functions of the scripts in this folder: a test picture, and pixels in files."""
import numpy as np
from PIL import Image


def picture(width, height, seed):
    """Smooth areas, edges and noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / (3 + 9 * c) + c) * np.cos(y / (5 + 4 * c)) for c in range(3)]
    pixels = 127 + 90 * np.stack(waves, axis=-1) + random.normal(0, 12, (height, width, 3))
    pixels[height // 3 : height // 2, width // 4 : width // 2] = random.integers(0, 256, 3)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def raw_file(folder, name, image):
    """Writes height x width x channels bytes, and returns what a reader must know about them."""
    pixels = np.asarray(image)
    (folder / name).write_bytes(pixels.tobytes())
    return {"file": name, "width": pixels.shape[1], "height": pixels.shape[0],
            "channels": 1 if pixels.ndim == 2 else pixels.shape[2]}
