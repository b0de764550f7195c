"""Writes picture files of every kind that PIL writes, and the RGB pixels that PIL reads from them.

python image_files.py FOLDER: FOLDER/files.json lists {"file", "pixels", "width", "height"}.
"""
import json
import sys
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

warnings.simplefilter("ignore")  # of transparent palettes
folder = Path(sys.argv[1])
files = []
random = np.random.default_rng(3)
y, x = np.mgrid[0:67, 0:91]
waves = np.stack([127 + 100 * np.sin(x / (3 + 5 * c)) * np.cos(y / (4 + 2 * c)) for c in range(3)], axis=-1)
photo = Image.fromarray(np.clip(waves + random.normal(0, 8, waves.shape), 0, 255).astype(np.uint8))
alpha = Image.fromarray(random.integers(0, 256, (67, 91), dtype=np.uint8))
rgba = photo.copy()
rgba.putalpha(alpha)
grey = photo.convert("L")
palette = photo.quantize(37)


def save(name, image, **options):
    image.save(folder / name, **options)
    add(name)


def add(name):
    with Image.open(folder / name) as opened:
        pixels = opened.convert("RGB")
    (folder / f"{name}.raw").write_bytes(pixels.tobytes())
    files.append({"file": name, "pixels": f"{name}.raw", "width": pixels.width, "height": pixels.height})


for subsampling in (0, 1, 2):
    for progressive in (False, True):
        save(f"rgb{subsampling}{int(progressive)}.jpg", photo, quality=88, subsampling=subsampling, progressive=progressive)
save("grey.jpg", grey, quality=90)
save("cmyk.jpg", photo.convert("CMYK"), quality=90)
save("low.jpg", photo, quality=10)
exif = Image.Exif()
exif[0x0112] = 6
save("turned.jpg", photo, exif=exif)

save("rgb.png", photo)
save("rgba.png", rgba)
save("grey.png", grey)
save("grey_alpha.png", rgba.convert("LA"))
save("palette.png", palette)
save("palette_transparent.png", palette, transparency=bytes(range(0, 185, 5)))
save("palette16.png", photo.quantize(16), bits=4)
save("palette2.png", photo.quantize(2), bits=1)
save("bits1.png", photo.convert("1"))
save("grey16.png", Image.fromarray((np.asarray(grey).astype(np.uint16) * 3)))
save("rgb_transparent.png", photo, transparency=(5, 6, 7))
save("grey_transparent.png", grey, transparency=100)

save("rgb.bmp", photo)
save("rgba.bmp", rgba)
save("grey.bmp", grey)
save("palette.bmp", palette)
save("bits1.bmp", photo.convert("1"))

save("rgb.webp", photo, quality=80)
save("rgba.webp", rgba, quality=80)
save("lossless.webp", photo, lossless=True)
save("lossless_alpha.webp", rgba, lossless=True)
save("animated.webp", photo, save_all=True, append_images=[photo.rotate(90)], lossless=True)

(folder / "files.json").write_text(json.dumps(files))
