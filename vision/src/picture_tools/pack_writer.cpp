#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "base/printable.h"
#include "lockstep/picture_tools/pack.h"
#include "picture_tools/pack_format.h"

namespace lockstep::data {
namespace {

template <typename T>
void append_number(std::vector<std::uint8_t>& bytes, T value) {
  const auto* raw = reinterpret_cast<const std::uint8_t*>(&value);
  bytes.insert(bytes.end(), raw, raw + sizeof value);
}

std::span<const std::uint8_t> as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

}  // namespace

PackWriter::PackWriter(AtomicFile file, std::vector<std::string> classes)
    : file_(std::move(file)), classes_(std::move(classes)) {}

Result<PackWriter> PackWriter::create(const std::filesystem::path& path, std::vector<std::string> classes) {
  LOCKSTEP_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
  LOCKSTEP_RETURN_IF_ERROR(file.append(std::vector<std::uint8_t>(pack_format::kHeaderBytes)));
  return PackWriter(std::move(file), std::move(classes));
}

Status PackWriter::add(std::span<const std::uint8_t> picture, std::int64_t label, std::string_view name) {
  if (label < 0 || label >= static_cast<std::int64_t>(classes_.size())) {
    return {ErrorCode::kInvalidArgument, fmt::format("{}: class {}: expected 0 to {}", printable(name), label,
                                                     static_cast<std::int64_t>(classes_.size()) - 1)};
  }
  if (picture.empty() || picture.size() > UINT32_MAX || name.size() > UINT32_MAX) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("{}: expected 1 to {} bytes, found {}", printable(name), UINT32_MAX, picture.size())};
  }
  append_number(index_, file_.size());
  append_number(index_, static_cast<std::uint32_t>(picture.size()));
  append_number(index_, static_cast<std::uint32_t>(label));
  append_number(index_, pack_format::crc_of(picture));
  append_number(index_, static_cast<std::uint32_t>(name.size()));
  // Relative to the first name: finish() knows its place and adds it.
  append_number(index_, std::uint64_t{names_.size()});
  names_ += name;
  return file_.append(picture);
}

Status PackWriter::finish() {
  std::vector<std::uint8_t> class_names;
  for (const std::string& name : classes_) {
    append_number(class_names, static_cast<std::uint32_t>(name.size()));
    class_names.insert(class_names.end(), name.begin(), name.end());
  }
  pack_format::Header header;
  std::copy(pack_format::kMagic.begin(), pack_format::kMagic.end(), header.magic.begin());
  header.classes = static_cast<std::uint32_t>(classes_.size());
  header.pictures = index_.size() / pack_format::kEntryBytes;
  header.index_offset = file_.size();
  header.names_offset = header.index_offset + index_.size();
  header.file_bytes = header.names_offset + class_names.size() + names_.size();
  constexpr std::size_t kNameOffset = pack_format::kEntryBytes - sizeof(std::uint64_t);
  for (std::size_t at = kNameOffset; at < index_.size(); at += pack_format::kEntryBytes) {
    const std::uint64_t offset =
        pack_format::read_number<std::uint64_t>(index_, at) + header.names_offset + class_names.size();
    std::memcpy(index_.data() + at, &offset, sizeof offset);
  }
  header.index_crc =
      pack_format::crc_of(as_bytes(names_), pack_format::crc_of(class_names, pack_format::crc_of(index_)));
  const auto* raw = reinterpret_cast<const std::uint8_t*>(&header);
  header.header_crc = pack_format::crc_of({raw, offsetof(pack_format::Header, header_crc)});
  LOCKSTEP_RETURN_IF_ERROR(file_.append(index_));
  LOCKSTEP_RETURN_IF_ERROR(file_.append(class_names));
  LOCKSTEP_RETURN_IF_ERROR(file_.append(as_bytes(names_)));
  LOCKSTEP_RETURN_IF_ERROR(file_.overwrite(0, {raw, sizeof header}));
  return file_.commit();
}

}  // namespace lockstep::data
