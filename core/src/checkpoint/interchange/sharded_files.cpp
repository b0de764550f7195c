#include "sharded_files.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/printable.h"
#include "checkpoint/file/damaged.h"
#include "checkpoint/file/error_context.h"
#include "checkpoint/file/file_bytes.h"
#include "checkpoint/file/file_kind.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::uint64_t kMostIndexBytes = 100'000'000;  // as headers of safetensors files

// The names of the tensors of each file. Keeps "weight_map" alone of {"metadata": {...}, "weight_map": {NAME: FILE}},
// so that nothing in the file is nested in memory.
class IndexReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::map<std::string, std::string> file_of;  // by tensor

  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }
  bool number_unsigned(number_unsigned_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override { return other(); }
  bool binary(binary_t&) override { return other(); }
  bool string(string_t& value) override {
    if (!in_map()) return true;
    if (!file_of.emplace(key_, value).second) damaged(fmt::format("\"{}\" is there twice", shown(key_)));
    return true;
  }
  bool start_object(std::size_t) override { return begin(); }
  bool start_array(std::size_t) override { return begin(); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& value) override {
    if (depth_ == 1) part_ = value;
    key_ = std::move(value);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    damaged(fmt::format("the index is no JSON object (at its byte {})", position));
  }

  static std::string shown(std::string_view name) { return printable(name.substr(0, kShown)); }

 private:
  bool in_map() const { return depth_ == 2 && part_ == "weight_map"; }
  bool other() const {
    if (in_map()) damaged(fmt::format("the file of \"{}\" is no text", shown(key_)));
    return true;
  }
  bool begin() {
    other();
    ++depth_;
    return true;
  }
  bool end() {
    --depth_;
    return true;
  }

  static constexpr std::size_t kShown = 100;  // characters of a name

  std::size_t depth_ = 0;
  std::string part_;  // key of the outer object
  std::string key_;
};

}  // namespace

StateDict read_shards(const std::filesystem::path& index,
                      const std::function<StateDict(const std::filesystem::path&)>& read) {
  return in_context(index.native(), [&] {
    const FileBytes file(index);
    if (file.size() > kMostIndexBytes) damaged(fmt::format("an index of {} bytes", file.size()));
    std::string text(file.size(), '\0');
    file.read(0, text.data(), text.size());
    IndexReader reader;
    nlohmann::json::sax_parse(text, &reader);
    if (reader.file_of.empty()) damaged("the index has no \"weight_map\" of names and files");
    std::map<std::string, StateDict> files;
    StateDict all;
    for (const auto& [name, shard] : reader.file_of) {
      const bool plain = !shard.empty() && shard != "." && shard != ".." && shard.find('/') == std::string::npos &&
                         shard.find('\0') == std::string::npos && !shard.ends_with(".index.json");
      if (!plain) damaged(fmt::format("the index names the file \"{}\"", IndexReader::shown(shard)));
      if (!files.contains(shard)) files[shard] = read(index.parent_path() / shard);
      const torch::Tensor* tensor = files[shard].find(name);
      if (tensor == nullptr && is_extra_state(name)) continue;
      if (tensor == nullptr) {
        damaged(fmt::format("tensor \"{}\" is not in {}", IndexReader::shown(name), IndexReader::shown(shard)));
      }
      all.insert(name, *tensor);
    }
    return all;
  });
}

}  // namespace lockstep::checkpoint
