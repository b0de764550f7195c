"""Makes an ImageFolder of 832 JPEGs, 500x375, quality 90, cut from photographs of scikit-image and scikit-learn; and a
second one of the same pictures with a shorter side of 256 pixels. 832 are 26 batches of 32: two workers have equally many.

python make_images.py FOLDER SMALL_FOLDER
"""

import random
import sys
from pathlib import Path

from PIL import Image
from skimage import data
from sklearn.datasets import load_sample_images

folder, small_folder = Path(sys.argv[1]), Path(sys.argv[2])
SIZE, SMALL_SIZE = (500, 375), (341, 256)
random.seed(0)
photos = [Image.fromarray(getattr(data, name)()).convert("RGB") for name in ("astronaut", "coffee", "chelsea", "rocket")]
photos += [Image.fromarray(image) for image in load_sample_images().images]
for label in range(4):
    for place in (folder, small_folder):
        (place / f"class{label}").mkdir(parents=True, exist_ok=True)
    for number in range(208):
        photo = random.choice(photos)
        width = int(photo.width * random.uniform(0.6, 1.0))
        height = int(min(photo.height, width * 0.75))
        x, y = random.randint(0, photo.width - width), random.randint(0, photo.height - height)
        part = photo.crop((x, y, x + width, y + height)).resize(SIZE, Image.Resampling.BICUBIC)
        part.save(folder / f"class{label}" / f"{number}.jpg", quality=90)
        part.resize(SMALL_SIZE, Image.Resampling.BICUBIC).save(small_folder / f"class{label}" / f"{number}.jpg", quality=90)
