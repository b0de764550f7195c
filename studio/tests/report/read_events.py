"""Reads a folder of event files with TensorBoard's own reader and prints all that is in them as JSON.

usage: read_events.py FOLDER
"""
import json
import sys

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.directory_loader import DirectoryLoader
from tensorboard.backend.event_processing.event_file_loader import TimestampedEventFileLoader
from tensorboard.backend.event_processing import io_wrapper


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
    result = {"scalars": {}, "events": 0}
    for tag in tags["scalars"]:
        result["scalars"][tag] = [[event.step, repr(event.value)] for event in accumulator.Scalars(tag)]
    result["pages"] = steps_of_pages(folder)
    loader = DirectoryLoader(folder, TimestampedEventFileLoader, path_filter=io_wrapper.IsTensorFlowEventsFile)
    result["events"] = sum(1 for _ in loader.Load())
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
