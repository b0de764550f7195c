"""Writes picture files of every kind that PIL reads, and the RGB pixels that PIL reads from them.

python image_files.py FOLDER: FOLDER/files.json lists {"file", "pixels", "width", "height"}; turned.json lists the same
of JPEG files with an EXIF orientation, after PIL's exif_transpose. The names of the first have endings that
torchvision's ImageFolder accepts; those of the second do not.
"""
import io
import json
import struct
import sys
import warnings
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

import picture_writers as writers

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


def write(name, content):
    (folder / name).write_bytes(content)
    add(name)


def jpeg(image, **options):
    content = io.BytesIO()
    image.save(content, "JPEG", **options)
    return content.getvalue()


for subsampling in (0, 1, 2):
    for progressive in (False, True):
        save(f"rgb{subsampling}{int(progressive)}.jpg", photo, quality=88, subsampling=subsampling, progressive=progressive)
save("grey.jpg", grey, quality=90)
save("cmyk.jpg", photo.convert("CMYK"), quality=90)
save("low.jpg", photo, quality=10)
for orientation in (3, 6):
    exif = Image.Exif()
    exif[0x0112] = orientation
    save(f"turned{orientation}.jpg", photo, exif=exif)
    save(f"grey_turned{orientation}.jpg", grey, exif=exif)
save("grey_progressive.jpg", grey, quality=90, progressive=True)
write("grey_sampling.jpg", writers.jpeg_with_sampling(jpeg(grey), 0x22))
save("restart.jpg", photo, restart_marker_blocks=3)
save("coded_rgb.jpg", photo, keep_rgb=True)
write("rgb_ids.jpg", writers.jpeg_without(jpeg(photo, keep_rgb=True), (0xE0, 0xEE)))
write("no_markers.jpg", writers.jpeg_without(jpeg(photo), (0xE0, 0xEE)))
cmyk = jpeg(photo.convert("CMYK"), quality=95)
save("cmyk_progressive.jpg", photo.convert("CMYK"), progressive=True)
write("cmyk_plain.jpg", writers.jpeg_without(cmyk, (0xE0, 0xEE)))
write("ycck.jpg", writers.jpeg_with_adobe(cmyk, 2))
for transform in (0, 1):
    write(f"adobe{transform}.jpg", writers.jpeg_with_adobe(jpeg(photo), transform))

# Without an end marker, but with all rows: PIL decodes them when some bytes follow.
for name, rest in (("zeros", bytes(100)), ("segment", b"\xff\xe0\0\x04ab"), ("cut_segment", b"\xff\xe0\0\x40ab")):
    write(f"no_end_{name}.jpg", jpeg(photo)[:-2] + rest)
    write(f"no_end_{name}_restart.jpg", jpeg(photo, restart_marker_blocks=2)[:-2] + rest)

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

levels = np.asarray(photo)
luma = np.asarray(grey)
for depth in (1, 2, 4, 8, 16):
    # Few grey levels. With 16 bits, up to four times the 255 to which PIL's conversion to RGB limits them.
    values = (luma.astype(np.uint16) * 4 if depth == 16 else luma >> (8 - depth))[..., None]
    for interlaced in (False, True):
        write(f"grey{depth}bits{'_interlaced' if interlaced else ''}.png", writers.png(values, 0, depth, interlaced=interlaced))
    write(f"grey{depth}bits_transparent.png", writers.png(values, 0, depth, transparency=bytes([0, 1])))
colors = random.integers(0, 256, (256, 3))
for depth in (1, 2, 4, 8):
    indices = (luma >> (8 - depth))[..., None]
    few = colors[: 1 << depth]
    write(f"palette{depth}bits.png", writers.png(indices, 3, depth, few))
    write(f"palette{depth}bits_transparent.png", writers.png(indices, 3, depth, few, bytes(range(1 << depth))))
    write(f"palette{depth}bits_interlaced.png", writers.png(indices, 3, depth, few, interlaced=True))
# A palette with fewer colours than the pixels use.
write("short_palette.png", writers.png((luma >> 4)[..., None], 3, 4, colors[:9]))
for depth, factor in ((8, 1), (16, 257)):
    wide = levels.astype(np.uint16) * factor
    layers = np.asarray(alpha).astype(np.uint16)[..., None] * factor
    gray = luma.astype(np.uint16)[..., None] * factor
    for interlaced in (False, True):
        end = f"{depth}{'_interlaced' if interlaced else ''}.png"
        write(f"rgb{end}", writers.png(wide, 2, depth, interlaced=interlaced))
        write(f"rgba{end}", writers.png(np.concatenate((wide, layers), -1), 6, depth, interlaced=interlaced))
        write(f"grey_alpha{end}", writers.png(np.concatenate((gray, layers), -1), 4, depth, interlaced=interlaced))

# What PIL forgives: no end or a part of one, wrong checksums behind the header, unknown chunks, a wrong zlib window.
for name, whole in (("rgb", writers.png(levels, 2, 8)),
                    ("grey16_interlaced", writers.png(luma.astype(np.uint16)[..., None] * 4, 0, 16, interlaced=True))):
    at = whole.index(b"IDAT") - 4
    size = int.from_bytes(whole[at : at + 4], "big")
    data, body, end = whole[at : at + 12 + size], whole[at + 8 : at + 8 + size], whole[at + 12 + size :]
    for cut in (1, 8, 12, 13, 16):
        write(f"cut{cut}_{name}.png", whole[:-cut])
    write(f"sums_{name}.png", whole[:at] + writers.chunk(b"IDAT", body, 1) + writers.chunk(b"IEND", b"", 2))
    write(f"parts_{name}.png", whole[:at] + writers.chunk(b"IDAT", body[:500], 1) + writers.chunk(b"IDAT", body[500:], 2))
    write(f"unknown_{name}.png", whole[:at] + writers.chunk(b"ABCD", b"x") + data + writers.chunk(b"EFGH", b"y") + end)
    write(f"junk_{name}.png", whole[:at] + data + bytes(30))
    write(f"late_{name}.png", whole[:at] + data + writers.chunk(b"tEXt", b"a\0b")[:-2])
    write(f"window_{name}.png", whole[:at] + writers.chunk(b"IDAT", b"\x08\x1d" + body[2:]) + end)
    write(f"no_sum_{name}.png", whole[:at] + writers.chunk(b"IDAT", body[:-4]) + end)
    method = bytearray(whole[16:29])
    method[10] = 0x13  # another compression than there is
    method[12] *= 5  # any number but 0 is Adam7
    write(f"method_{name}.png", whole[:8] + writers.chunk(b"IHDR", bytes(method)) + whole[33:])

save("rgb.bmp", photo)
save("rgba.bmp", rgba)
save("grey.bmp", grey)
save("palette.bmp", palette)
save("bits1.bmp", photo.convert("1"))
width, height = photo.size
for depth in (1, 4, 8):
    indices = luma >> (8 - depth)
    few = colors[: 1 << depth].tolist()
    rows = writers.bmp_rows(writers.packed(indices, depth))
    write(f"colors{depth}.bmp", writers.bmp(width, height, depth, rows, palette=few))
    write(f"os2_{depth}.bmp", writers.bmp(width, height, depth, rows, palette=few, header=12))
    if depth > 1:
        write(f"runs{depth}.bmp", writers.bmp(width, height, depth, writers.run_lengths(indices, depth), 3 - depth // 4, few))
    write(f"short{depth}.bmp", writers.bmp(width, height, depth, rows, palette=few[: len(few) // 2 + 1]))
    for header in (12, 40):
        whole = writers.bmp(width, height, depth, rows, palette=few, header=header)
        for offset in (0, 14 + header):
            write(f"offset{offset}_{header}_{depth}.bmp", writers.bmp_with_offset(whole, offset))
        write(f"unpadded_{header}_{depth}.bmp", whole[: len(whole) - -((width * depth + 7) // 8) % 4])
    if depth > 1:  # The data may end with the last pixel, and be of another depth than the pixels.
        runs = writers.run_lengths(indices, depth)
        for end in (2, 4):
            write(f"runs{depth}_end{end}.bmp", writers.bmp(width, height, depth, runs[:-end], 3 - depth // 4, few))
        write(f"runs{depth}_offset.bmp",
              writers.bmp_with_offset(writers.bmp(width, height, depth, runs, 3 - depth // 4, few), 54))
        other = writers.run_lengths(luma >> 4, depth)
        write(f"runs{depth}_other.bmp", writers.bmp(width, height, 12 - depth, other, 3 - depth // 4, few[:16]))
for shades in (256, 200, 50, 3, 2):
    ramp = [[level] * 3 for level in range(shades)]
    write(f"ramp{shades}.bmp", writers.bmp(width, height, 8, writers.bmp_rows(luma), palette=ramp))
red, green, blue = (levels[..., c].astype(np.uint32) for c in range(3))
five = (red >> 3 << 10 | green >> 3 << 5 | blue >> 3).astype("<u2")
six = (red >> 3 << 11 | green >> 2 << 5 | blue >> 3).astype("<u2")
write("five.bmp", writers.bmp(width, height, 16, writers.bmp_rows(five)))
write("six.bmp", writers.bmp(width, height, 16, writers.bmp_rows(six), 3, masks=np.array([0xF800, 0x7E0, 0x1F], "<u4").tobytes()))
last = (red << 24 | green << 16 | blue << 8).astype("<u4")
write("fields.bmp", writers.bmp(width, height, 32, writers.bmp_rows(last), 3,
                                masks=np.array([0xFF000000, 0xFF0000, 0xFF00], "<u4").tobytes()))
top_down = writers.bmp_rows(np.ascontiguousarray(levels[::-1, :, ::-1]).reshape(height, -1))
write("top_down.bmp", writers.bmp(width, -height, 24, top_down))

bytes24 = writers.bmp_rows(np.ascontiguousarray(levels[..., ::-1]).reshape(height, -1))
write("fields24.bmp", writers.bmp(width, height, 24, bytes24, 3, masks=np.array([0xFF0000, 0xFF00, 0xFF], "<u4").tobytes()))
for name, content in (("24", writers.bmp(width, height, 24, bytes24)), ("16", writers.bmp(width, height, 16, writers.bmp_rows(five))),
                      ("top", top_down)):
    if name == "top":
        content = writers.bmp(width, -height, 24, content)
    write(f"offset0_{name}.bmp", writers.bmp_with_offset(content, 0))
    write(f"unpadded_{name}.bmp", content[: len(content) - -(width * (2 if name == "16" else 3)) % 4])
any32 = writers.bmp_rows(random.integers(0, 2**32, (height, width), dtype=np.uint32).astype("<u4"))
for header, masks in ((52, (0xFF000000, 0xFF00, 0xFF, 0)), (56, (0xFF, 0xFF00, 0xFF0000, 0xFF000000)), (64, (0, 0, 0, 0)),
                      (108, (0xFF000000, 0xFF0000, 0xFF00, 0xFF)), (124, (0xFF0000, 0xFF00, 0xFF, 0xFF000000))):
    write(f"masks{header}.bmp", writers.bmp_of_masks(width, height, 32, any32, header, masks))

save("rgb.webp", photo, quality=80)
save("rgba.webp", rgba, quality=80)
save("lossless.webp", photo, lossless=True)
save("lossless_alpha.webp", rgba, lossless=True)
save("animated.webp", photo, save_all=True, append_images=[photo.rotate(90)], lossless=True)

save("rgb.ppm", photo)
save("grey.pgm", grey)
save("grey16.pgm", Image.fromarray(np.asarray(grey).astype(np.int32) * 3))
save("bits.ppm", photo.convert("1"))
save("grey.ppm", grey)


def text(image, factor=1):
    return "\n".join(" ".join(str(int(v) // factor) for v in row) for row in np.asarray(image).reshape(image.height, -1))


write("text.ppm", f"P3 # a comment\n# another\n{photo.width} {photo.height}\n255\n# more\n{text(photo)}".encode())
write("few.ppm", f"P3\n{photo.width}\t{photo.height}\n15\n{text(photo, 17)}\n".encode())
write("text.pgm", f"P2\n{grey.width} {grey.height} 255\n{text(grey)}\n".encode())
write("wide.pgm", f"P2\n{grey.width} {grey.height} 40000\n{text(grey)}\n".encode())
write("text_bits.ppm", f"P1\n{grey.width} {grey.height}\n{text(grey, 128).replace(' ', '')}\n".encode())
write("odd.ppm", b"P6\n%d %d\n100\n" % photo.size + np.minimum(levels, 120).tobytes())
write("wide.ppm", b"P6\n%d %d\n40000\n" % photo.size + (levels.astype(">u2") * 150).tobytes())
write("odd.pgm", b"P5\n%d %d\n1000\n" % grey.size + np.asarray(grey).astype(">u2").tobytes())

save("rgb.tif", photo)
for name in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
    save(f"rgb_{name}.tiff", photo, compression=name)
    save(f"grey_{name}.tiff", grey, compression=name)
save("grey.tif", grey)
save("bits1.tif", photo.convert("1"))
save("fax.tif", photo.convert("1"), compression="group4")
save("palette.tif", palette)
save("rgba.tif", rgba)
save("grey_alpha.tif", rgba.convert("LA"))
save("cmyk.tif", photo.convert("CMYK"), compression="tiff_lzw")
save("grey16.tif", Image.fromarray(np.asarray(grey).astype(np.uint16) * 3))
save("int32.tif", Image.fromarray(np.asarray(grey).astype(np.int32) * 3 - 100))
save("float.tif", Image.fromarray(np.asarray(grey).astype(np.float32) * 1.7 - 50))
for orientation in range(1, 9):
    save(f"turned{orientation}.tif", photo, tiffinfo={274: orientation})
for order in "<>":
    end = f"{'le' if order == '<' else 'be'}.tif"
    for tile in (None, 32):
        for separate in (False, True):
            name = f"{'tiles' if tile else 'strips'}{int(separate)}{end}"
            write(f"rgb_{name}", writers.tiff(levels, 2, 8, order, tile=tile, separate=separate))
            if not separate:  # which PIL reads as 8 bits
                write(f"rgb16_{name}", writers.tiff(levels.astype(np.uint16) * 200, 2, 16, order, tile=tile))
    for depth in (1, 2, 4, 8):
        few = (luma >> (8 - depth))[..., None]
        write(f"white{depth}{end}", writers.tiff(few, 0, depth, order))
        write(f"black{depth}{end}", writers.tiff(few, 1, depth, order))
        if depth > 1:
            write(f"colors{depth}{end}", writers.tiff(few, 3, depth, order, palette=colors[: 1 << depth]))
    write(f"multiplied{end}", writers.tiff(np.asarray(rgba), 2, 8, order, extra=1))
    write(f"ignored{end}", writers.tiff(np.asarray(rgba), 2, 8, order, extra=0))
    for tile in (None, 32):
        absent = writers.tiff(np.asarray(rgba), 2, 8, order, tile=tile, separate=True, extra=0, absent=1)
        write(f"absent_plane{tile or 0}{end}", absent)
        write(f"alpha_plane{tile or 0}{end}", writers.tiff(np.asarray(rgba), 2, 8, order, tile=tile, separate=True, extra=2))
# What PIL forgives: runs that go on in the next row, and strips and tiles that unpack to more than their pixels.
for tile in (None, 32):
    runs = lambda pixels: b"".join(bytes([len(pixels[at : at + 100]) - 1]) + pixels[at : at + 100]
                                   for at in range(0, len(pixels), 100))
    write(f"long_runs{tile or 0}.tif", writers.tiff(levels, 2, 8, "<", tile=tile, compression=32773, compress=runs))
    more = lambda pixels: zlib.compress(pixels + bytes(500), 0)
    write(f"more_rows{tile or 0}.tif", writers.tiff(levels, 2, 8, "<", tile=tile, compression=8, compress=more))
for tile in (None, 32):
    write(f"grey12_{tile or 0}.tif", writers.tiff(luma.astype(np.uint16)[..., None] * 3, 1, 12, "<", tile=tile))

(folder / "files.json").write_text(json.dumps(files))

plain = jpeg(photo, quality=90)
turned = []


def exif(order, kind, value, count=1):
    """EXIF data with the orientation as a BYTE (1), SHORT (3, 8) or LONG (4, 9)."""
    packed = {1: "B3x", 3: "H2x", 4: "I", 8: "h2x", 9: "i"}[kind]
    entry = struct.pack(order + "HHI" + packed, 0x0112, kind, count, value)
    return {"<": b"II", ">": b"MM"}[order] + struct.pack(order + "HIH", 42, 8, 1) + entry + bytes(4)


def segment(content):
    return b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content


def exif_segment(*arguments, **options):
    return segment(b"Exif\0\0" + exif(*arguments, **options))


def write_turned(name, segments, at=2):
    (folder / name).write_bytes(plain[:at] + segments + plain[at:])
    with Image.open(folder / name) as opened:
        pixels = ImageOps.exif_transpose(opened).convert("RGB")
    (folder / f"{name}.raw").write_bytes(pixels.tobytes())
    turned.append({"file": name, "pixels": f"{name}.raw", "width": pixels.width, "height": pixels.height})


for order, end in (("<", "le"), (">", "be")):
    for kind in (1, 3, 4, 8, 9):
        for value in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9):
            write_turned(f"exif_{end}_{kind}_{value}.exif", exif_segment(order, kind, value))
    write_turned(f"exif_{end}_none.exif", exif_segment(order, 3, 6, count=0))
six = exif_segment(">", 3, 6)
write_turned("exif_fill.exif", b"\xff\xff" + six)
write_turned("exif_fill_later.exif", b"\xff" + six, at=20)
write_turned("exif_junk.exif", b"\x00\x07" + six, at=20)
write_turned("exif_xmp_first.exif", b"\xff\xe1\0\x20http://ns.adobe.com/xap/1.0/\0x" + six)
write_turned("exif_late.exif", six, at=plain.index(b"\xff\xda"))
write_turned("exif_twice_signed.exif", segment(b"Exif\0\0Exif\0\0" + exif(">", 3, 6)))
(folder / "turned.json").write_text(json.dumps(turned))
