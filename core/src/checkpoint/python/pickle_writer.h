// Pickles of protocol 2, as torch.save writes them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace lockstep::checkpoint {

class PickleWriter {
 public:
  PickleWriter() { bytes_ = "\x80\x02"; }

  void none() { bytes_ += 'N'; }
  void boolean(bool value) { bytes_ += value ? '\x88' : '\x89'; }
  void integer(std::int64_t value);
  void unsigned_integer(std::uint64_t value);  // from 2^63 on
  void floating(double value);
  void text(std::string_view utf8);
  // A name of pickle_names.h, or a text, that occurs often: written once.
  void name(std::string_view module, std::string_view name);
  void often(std::string_view utf8);
  // Remembers the last value as that of `object`; writes it again if it is remembered.
  void remember(const void* object);
  bool again(const void* object);

  void begin_tuple() { bytes_ += '('; }
  void end_tuple() { bytes_ += 't'; }
  void begin_list() { bytes_ += "]("; }
  void end_list() { bytes_ += 'e'; }
  // Keys and values follow one another.
  void begin_dict() { bytes_ += "}("; }
  void end_dict() { bytes_ += 'u'; }
  void empty_mapping();              // OrderedDict()
  void call() { bytes_ += 'R'; }     // of the last two values: a name, a tuple
  void storage() { bytes_ += 'Q'; }  // makes the last value, a tuple, a reference to a storage

  // Ends the pickle.
  std::string finish() { return std::move(bytes_ += '.'); }

 private:
  template <typename Write>
  void once(const std::string& key, Write write);

  std::string bytes_;
  std::map<std::string, std::uint32_t> written_;
  std::map<const void*, std::uint32_t> objects_;
  std::uint32_t remembered_ = 0;
};

}  // namespace lockstep::checkpoint
