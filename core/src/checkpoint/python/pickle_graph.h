// What a pickle says, before any tensor is made: values that refer to one another by number. A value may be used many
// times, and a hostile pickle can make a list that contains itself; the numbers make both harmless.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pickle_names.h"

namespace lockstep::checkpoint {

using PickleId = std::uint32_t;

enum class PickleKind : std::uint8_t {
  kNone,
  kBool,
  kInt,
  kUnsigned,  // from 2^63 on: the bits of an unsigned number in `integer`
  kFloat,
  kText,
  kBytes,
  kList,
  kTuple,
  kDict,     // items: key, value, key, value, ...
  kName,     // one of pickle_names.h
  kForeign,  // an object that is not read; the text says what it is
  kCall,     // items: a name, then its arguments
  kStorage,  // items: the fields that torch.save writes for a storage
};

// What Python has where LibTorch has no such type.
enum class PythonType : std::uint8_t { kSame, kOrderedDict, kCounter, kSet };

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  PythonType python = PythonType::kSame;  // of kList, kDict
  union {
    std::int64_t integer = 0;  // kInt, kUnsigned; kBool: 0 or 1
    double number;             // kFloat
    const PickleName* name;    // kName
    std::size_t place;         // others: in `texts` or `lists`
  };
};

struct PickleGraph {
  std::vector<PickleValue> values;
  std::vector<std::string> texts;            // kText, kBytes, kForeign
  std::vector<std::vector<PickleId>> lists;  // kList, kTuple, kDict, kCall, kStorage
  PickleId root = 0;

  const PickleValue& at(PickleId id) const { return values[id]; }
  const std::string& text(PickleId id) const { return texts[values[id].place]; }
  const std::vector<PickleId>& items(PickleId id) const { return lists[values[id].place]; }
  std::vector<PickleId>& items(PickleId id) { return lists[values[id].place]; }
};

}  // namespace lockstep::checkpoint
