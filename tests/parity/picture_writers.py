"""Writes picture files that PIL reads but does not write: PNG, BMP and TIFF of any depth, JPEG with other markers."""
import struct
import zlib

import numpy as np


def packed(values, bits):
    """Packs rows of values with `bits` bits to bytes; the first value is in the upper bits."""
    if bits == 16:
        return values.astype(">u2").reshape(len(values), -1).view(np.uint8)
    digits = np.unpackbits(values.astype(">u2")[..., None].view(np.uint8), axis=-1)[..., 16 - bits :]
    return np.packbits(digits.reshape(len(values), -1), axis=1)


def chunk(name, content, checksum=None):
    """A chunk of a PNG file."""
    checksum = zlib.crc32(name + content) if checksum is None else checksum
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def png(values, color_type, bits, palette=None, transparency=None, interlaced=False):
    """`values` is height x width x samples (0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA)."""
    height, width = values.shape[:2]
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    lines = b""
    for left, top, step_x, step_y in passes:
        part = values[top::step_y, left::step_x]
        if part.size:
            lines += b"".join(b"\0" + row.tobytes() for row in packed(part, bits))

    chunks = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, int(interlaced)))
    if palette is not None:
        chunks += chunk(b"PLTE", palette.astype(np.uint8).tobytes())
    if transparency is not None:
        chunks += chunk(b"tRNS", transparency)
    return b"\x89PNG\r\n\x1a\n" + chunks + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


def bmp(width, height, bits, pixels, compression=0, palette=None, masks=b"", header=40):
    """`pixels` are the bytes of the file, the lowest row first (with a negative height: the uppermost first)."""
    colors = 0 if palette is None else len(palette)
    if header == 12:
        description = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        description = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(pixels), 0, 0, colors, 0)
    table = masks
    for r, g, b in [] if palette is None else palette:
        table += bytes([b, g, r]) + (b"" if header == 12 else b"\0")
    at = 14 + len(description) + len(table)
    return b"BM" + struct.pack("<IHHI", at + len(pixels), 0, 0, at) + description + table + pixels


def bmp_of_masks(width, height, bits, pixels, header, masks):
    """With a header of 52 bytes or more, which holds the masks of the colours."""
    description = struct.pack("<IiiHHIIiiII4I", header, width, height, 1, bits, 3, len(pixels), 0, 0, 0, 0, *masks)
    at = 14 + header
    return b"BM" + struct.pack("<IHHI", at + len(pixels), 0, 0, at) + description.ljust(header, b"\0")[:header] + pixels


def bmp_with_offset(content, offset):
    return content[:10] + struct.pack("<I", offset) + content[14:]


def bmp_rows(rows):
    """Pads rows to multiples of 4 bytes, and reverses their order: the lowest comes first."""
    return b"".join(row.tobytes() + b"\0" * (-len(row.tobytes()) % 4) for row in rows[::-1])


def run_lengths(indices, bits):
    """Encodes indices as RLE8 or RLE4: repeats, copies of even length, and an end for each row."""
    out = b""
    for row in indices[::-1]:
        at = 0
        while at < len(row):
            count = 1
            while at + count < len(row) and count < 255 and row[at + count] == row[at]:
                count += 1
            rest = len(row) - at
            if count == 1 and rest >= 4:
                values = row[at : at + 4]
                out += bytes([0, 4]) + (bytes(values) if bits == 8 else bytes([values[0] << 4 | values[1], values[2] << 4 | values[3]]))
                at += 4
            else:
                out += bytes([count, row[at] if bits == 8 else row[at] << 4 | row[at]])
                at += count
        out += b"\0\0"
    return out + b"\0\1"


def jpeg_segments(content):
    """Returns the marker segments before the scan, each with its marker, and the rest."""
    at, segments = 2, []
    while content[at + 1] != 0xDA:
        size = 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        segments.append(content[at : at + size])
        at += size
    return segments, content[at:]


def jpeg_without(content, markers):
    segments, rest = jpeg_segments(content)
    return content[:2] + b"".join(s for s in segments if s[1] not in markers) + rest


def jpeg_with_adobe(content, transform):
    """The same data with an Adobe marker for this kind: 0 RGB or CMYK, 1 YCbCr, 2 YCCK."""
    content = jpeg_without(content, (0xE0, 0xEE))
    return content[:2] + b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0" + bytes([transform]) + content[2:]


def jpeg_with_sampling(content, sampling):
    """A picture of one component with another sampling factor, which has no effect."""
    segments, rest = jpeg_segments(content)
    changed = [s[:11] + bytes([sampling]) + s[12:] if s[1] in (0xC0, 0xC2) else s for s in segments]
    return content[:2] + b"".join(changed) + rest


def tiff(values, colors, bits, order, palette=None, tile=None, separate=False, extra=None, absent=0, compression=1,
         compress=bytes):
    """`values` is height x width x samples; `colors` is the photometric interpretation; order < or >. `absent`: so many
    of the last planes are not in the file. `compress` makes the content of a strip or tile from its pixels."""
    height, width, samples = values.shape
    dtype = order + "u2" if bits == 16 else "u1"

    def stored(part):
        if bits < 8 or bits == 12:
            return compress(packed(part, bits).tobytes())
        return compress(np.ascontiguousarray(part).astype(dtype).tobytes())

    planes = [values[..., i : i + 1] for i in range(samples - absent)] if separate else [values]
    pieces = []
    for plane in planes:
        if tile is None:
            pieces += [stored(plane[y : y + 20]) for y in range(0, height, 20)]
            continue
        for y in range(0, height, tile):
            for x in range(0, width, tile):
                piece = np.zeros((tile, tile, plane.shape[2]), values.dtype)
                part = plane[y : y + tile, x : x + tile]
                piece[: part.shape[0], : part.shape[1]] = part
                pieces.append(stored(piece))
    content = bytearray(struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, 0))
    places = []
    for piece in pieces:
        places.append(len(content))
        content += piece + b"\0" * (len(piece) % 2)
    tags = {256: (4, [width]), 257: (4, [height]), 258: (3, [bits] * samples), 259: (3, [compression]), 262: (3, [colors])}
    tags |= {277: (3, [samples]), 284: (3, [2 if separate else 1])}
    lengths = [len(piece) for piece in pieces]
    if tile is None:
        tags |= {273: (4, places), 278: (4, [20]), 279: (4, lengths)}
    else:
        tags |= {322: (4, [tile]), 323: (4, [tile]), 324: (4, places), 325: (4, lengths)}
    if palette is not None:
        tags[320] = (3, [int(color) * 257 for color in np.asarray(palette).T.ravel()])
    if extra is not None:
        tags[338] = (3, [extra])
    directory = struct.pack(order + "H", len(tags))
    for tag, (kind, numbers) in sorted(tags.items()):
        packed_numbers = struct.pack(f"{order}{len(numbers)}{'H' if kind == 3 else 'I'}", *numbers)
        if len(packed_numbers) > 4:
            at = len(content)
            content += packed_numbers
            packed_numbers = struct.pack(order + "I", at)
        directory += struct.pack(order + "HHI", tag, kind, len(numbers)) + packed_numbers.ljust(4, b"\0")
    struct.pack_into(order + "I", content, 4, len(content))
    return bytes(content) + directory + struct.pack(order + "I", 0)
