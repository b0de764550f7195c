// The bytes of a pickle, one after another, from a part of a file, and the opcodes among them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/file/file_bytes.h"

namespace lockstep::checkpoint {

class PickleInput {
 public:
  // Reads bytes [begin, end) of `file`, which must outlive this object.
  PickleInput(const FileBytes& file, std::uint64_t begin, std::uint64_t end) : file_(file), next_(begin), end_(end) {}

  // The offset in the file of the byte that is read next.
  std::uint64_t position() const { return next_ - (buffer_.size() - used_); }
  std::uint64_t left() const { return end_ - position(); }

  // Each throws CheckpointError (kCorrupt) when the bytes end.
  std::uint8_t byte();
  std::string bytes(std::uint64_t count);
  // Up to the end of the line, without it; at most `most` bytes.
  std::string line(std::size_t most);
  // An unsigned little-endian number of `count` bytes, at most 8.
  std::uint64_t number(std::size_t count);

 private:
  void fill();

  const FileBytes& file_;
  std::uint64_t next_;  // what fill() reads
  std::uint64_t end_;
  std::vector<char> buffer_;
  std::size_t used_ = 0;
};

namespace pickle_opcode {

// Those that are read, named as in Python's pickletools.
enum PickleOpcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

}  // namespace pickle_opcode

}  // namespace lockstep::checkpoint
