#include "picture_tools/check_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string_view>

#include "base/printable.h"
#include "image/memory_errors.h"
#include "lockstep/image/decode.h"
#include "lockstep/image/folder_index.h"
#include "picture_tools/in_parallel.h"

namespace lockstep::data {
namespace {

struct Look {
  std::optional<Finding> finding;
  std::size_t bytes = 0;
  std::size_t hash = 0;
  bool readable = false;
};

// Fills `look`; an error says why the picture cannot be decoded.
Status examine(const std::string& path, const CheckOptions& options, Look& look) {
  thread_local std::vector<std::uint8_t> bytes;
  LOCKSTEP_RETURN_IF_ERROR(read_image_file(path, bytes));
  look.readable = true;
  look.bytes = bytes.size();
  look.hash = std::hash<std::string_view>()({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  LOCKSTEP_ASSIGN_OR_RETURN(const Image image, decode_image(bytes, {.strict = true}));
  if (std::min(image.width(), image.height()) < options.least_side) {
    look.finding = {FindingKind::kTiny, path, fmt::format("{} x {} pixels", image.width(), image.height())};
  }
  return {};
}

Look look_at(const std::string& path, const CheckOptions& options) {
  Look look;
  const Status status = or_out_of_memory(path, [&] { return examine(path, options, look); });
  if (status.ok()) return look;
  // A finding has the path already.
  std::string_view detail = status.message();
  const std::string context = printable(path) + ": ";
  if (detail.starts_with(context)) detail.remove_prefix(context.size());
  look.finding = {FindingKind::kCorrupt, path, std::string(detail)};
  return look;
}

bool same_content(const std::string& a, const std::string& b) {
  std::vector<std::uint8_t> first;
  std::vector<std::uint8_t> second;
  return read_image_file(a, first).ok() && read_image_file(b, second).ok() && first == second;
}

}  // namespace

Result<FolderReport> check_folder(const std::filesystem::path& folder, const CheckOptions& options) {
  LOCKSTEP_ASSIGN_OR_RETURN(const FolderIndex index, index_image_folder(folder, {.allow_empty = true}));
  std::vector<Look> looks(index.samples.size());
  in_parallel(0, static_cast<std::int64_t>(looks.size()), thread_count(options.threads), [&](std::int64_t i) {
    const auto at = static_cast<std::size_t>(i);
    looks[at] = look_at(index.samples[at].path, options);
  });
  FolderReport report{.pictures = static_cast<std::int64_t>(looks.size()),
                      .classes = static_cast<std::int64_t>(index.classes.size()),
                      .findings = {}};
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> first_with;  // size and hash -> the first file with them
  for (std::size_t i = 0; i < looks.size(); ++i) {
    const std::string& path = index.samples[i].path;
    if (looks[i].finding) report.findings.push_back(*looks[i].finding);
    if (!looks[i].readable) continue;
    const auto [place, is_new] = first_with.try_emplace({looks[i].bytes, looks[i].hash}, i);
    const FolderIndex::Sample& first = index.samples[place->second];
    if (is_new || !same_content(first.path, path)) continue;
    const bool other_class = first.label != index.samples[i].label;
    report.findings.push_back(
        {FindingKind::kDuplicate, path,
         fmt::format("the same as {}{}", printable(first.path), other_class ? ", of another class" : "")});
  }
  return report;
}

}  // namespace lockstep::data
