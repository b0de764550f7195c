"""Makes the pictures of the job of ./dev bench train: folders train and test of JPEGs, 500x375, quality 90. The class of a
picture is the photograph that it is cut from (those of make_images.py), so that a net can learn it.

python make_job.py FOLDER TRAIN TEST: so many pictures of each class
"""

import random
import sys
from pathlib import Path

from PIL import Image
from skimage import data
from sklearn.datasets import load_sample_images

folder = Path(sys.argv[1])
SIZE = (500, 375)
random.seed(0)
photos = [Image.fromarray(getattr(data, name)()).convert("RGB") for name in ("astronaut", "coffee", "chelsea", "rocket")]
photos += [Image.fromarray(image) for image in load_sample_images().images]
for part, count in (("train", int(sys.argv[2])), ("test", int(sys.argv[3]))):
    for label, photo in enumerate(photos):
        place = folder / part / f"class{label}"
        place.mkdir(parents=True)
        for number in range(count):
            width = int(photo.width * random.uniform(0.3, 0.8))
            height = int(min(photo.height, width * 0.75))
            x, y = random.randint(0, photo.width - width), random.randint(0, photo.height - height)
            part_of_it = photo.crop((x, y, x + width, y + height)).resize(SIZE, Image.Resampling.BICUBIC)
            part_of_it.save(place / f"{number:03}.jpg", quality=90)
