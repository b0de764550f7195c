"""Reads a folder of event files with TensorBoard's own reader and prints all that is in them as JSON.

Text and pictures are in base64. usage: read_events.py FOLDER
"""
import base64
import json
import sys

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.directory_loader import DirectoryLoader
from tensorboard.backend.event_processing.event_file_loader import TimestampedEventFileLoader
from tensorboard.backend.event_processing import io_wrapper
from tensorboard.util import tensor_util


def encoded(data):
    return base64.b64encode(data).decode()


def steps_of_pages(folder):
    """The steps of each tag as the reader behind TensorBoard's pages has them."""
    accumulator = plugin_event_accumulator.EventAccumulator(folder, {plugin_event_accumulator.TENSORS: 0})
    accumulator.Reload()
    return {tag: [event.step for event in accumulator.Tensors(tag)]
            for tag in accumulator.Tags()[plugin_event_accumulator.TENSORS]}


def main():
    folder = sys.argv[1]
    everything = {name: 0 for name in event_accumulator.STORE_EVERYTHING_SIZE_GUIDANCE}
    accumulator = event_accumulator.EventAccumulator(folder, size_guidance=everything)
    accumulator.Reload()
    tags = accumulator.Tags()
    result = {"scalars": {}, "images": {}, "histograms": {}, "texts": {}, "events": 0}
    for tag in tags["scalars"]:
        result["scalars"][tag] = [[event.step, repr(event.value)] for event in accumulator.Scalars(tag)]
    for tag in tags["images"]:
        result["images"][tag] = [
            [event.step, event.width, event.height, encoded(event.encoded_image_string)] for event in accumulator.Images(tag)]
    for tag in tags["histograms"]:
        for event in accumulator.Histograms(tag):
            value = event.histogram_value
            result["histograms"].setdefault(tag, []).append({
                "step": event.step, "min": value.min, "max": value.max, "num": value.num, "sum": value.sum,
                "sum_squares": value.sum_squares, "limits": list(value.bucket_limit), "counts": list(value.bucket)})
    for tag in tags["tensors"]:
        if accumulator.SummaryMetadata(tag).plugin_data.plugin_name != "text":
            continue
        for event in accumulator.Tensors(tag):
            text = tensor_util.make_ndarray(event.tensor_proto)
            result["texts"].setdefault(tag, []).append([event.step, list(text.shape), encoded(text.reshape(-1)[0])])
    result["pages"] = steps_of_pages(folder)
    loader = DirectoryLoader(folder, TimestampedEventFileLoader, path_filter=io_wrapper.IsTensorFlowEventsFile)
    result["events"] = sum(1 for _ in loader.Load())
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
