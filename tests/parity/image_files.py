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

save("rgb.ppm", photo)
save("grey.pgm", grey)
save("grey16.pgm", Image.fromarray(np.asarray(grey).astype(np.int32) * 3))
save("bits.pbm", photo.convert("1"))


def write(name, content):
    (folder / name).write_bytes(content)
    add(name)


def text(image, factor=1):
    return "\n".join(" ".join(str(int(v) // factor) for v in row) for row in np.asarray(image).reshape(image.height, -1))


levels = np.asarray(photo)
write("text.ppm", f"P3 # a comment\n# another\n{photo.width} {photo.height}\n255\n# more\n{text(photo)}".encode())
write("few.ppm", f"P3\n{photo.width}\t{photo.height}\n15\n{text(photo, 17)}\n".encode())
write("text.pgm", f"P2\n{grey.width} {grey.height} 255\n{text(grey)}\n".encode())
write("wide.pgm", f"P2\n{grey.width} {grey.height} 40000\n{text(grey)}\n".encode())
write("text.pbm", f"P1\n{grey.width} {grey.height}\n{text(grey, 128).replace(' ', '')}\n".encode())
write("odd.ppm", b"P6\n%d %d\n100\n" % photo.size + np.minimum(levels, 120).tobytes())
write("wide.ppm", b"P6\n%d %d\n40000\n" % photo.size + (levels.astype(">u2") * 150).tobytes())
write("odd.pgm", b"P5\n%d %d\n1000\n" % grey.size + np.asarray(grey).astype(">u2").tobytes())

(folder / "files.json").write_text(json.dumps(files))
