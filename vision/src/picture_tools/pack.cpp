#include "lockstep/picture_tools/pack.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "base/printable.h"
#include "base/regular_file.h"
#include "picture_tools/pack_format.h"

namespace lockstep::data {

using pack_format::Header;
using pack_format::kEntryBytes;
using pack_format::kHeaderBytes;

struct PackReader::Mapping {
  explicit Mapping(std::string_view file) : path(printable(file)) {}
  ~Mapping() {
    if (address != nullptr) ::munmap(address, bytes);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const std::uint8_t> all() const { return {static_cast<const std::uint8_t*>(address), bytes}; }
  Status corrupt(const std::string& what) const {
    return {ErrorCode::kCorrupt, fmt::format("{}: {}; make it again with `lockstep pack`", path, what)};
  }

  std::string path;  // for messages
  void* address = nullptr;
  std::size_t bytes = 0;
};

namespace {

// Describes the fault of a header; empty if it has none. Sums cannot overflow: each number is at most the file's size.
std::string fault_of(const Header& header, std::span<const std::uint8_t> file) {
  if (header.file_bytes != file.size()) {
    return fmt::format("expected {} bytes, found {}: the file was cut short or extended", header.file_bytes,
                       file.size());
  }
  const std::uint64_t most = file.size() / kEntryBytes;
  if (header.pictures > most || header.index_offset < kHeaderBytes || header.index_offset > file.size() ||
      header.names_offset > file.size() || header.names_offset != header.index_offset + header.pictures * kEntryBytes) {
    return fmt::format("impossible offsets in the header: {} pictures, index at byte {}, names at byte {} of {}",
                       header.pictures, header.index_offset, header.names_offset, file.size());
  }
  const std::uint32_t crc = pack_format::crc_of(file.subspan(header.index_offset));
  if (crc == header.index_crc) return "";
  return fmt::format("the index is damaged: expected checksum {:08x}, found {:08x} (bytes {} to {})", header.index_crc,
                     crc, header.index_offset, file.size());
}

}  // namespace

Result<PackReader> PackReader::open(const std::filesystem::path& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::open(path));
  const auto mapping = std::make_shared<Mapping>(path.native());
  if (file.size() < kHeaderBytes) {
    return mapping->corrupt(fmt::format("expected a header of {} bytes, found {}", kHeaderBytes, file.size()));
  }
  void* address = ::mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, file.fd(), 0);
  if (address == MAP_FAILED) {
    return Status::from_errno("cannot map the file into memory", errno).with_context(mapping->path);
  }
  mapping->address = address;
  mapping->bytes = file.size();
  PackReader reader;
  reader.mapping_ = mapping;
  LOCKSTEP_RETURN_IF_ERROR(reader.read_index());
  return reader;
}

Status PackReader::read_index() {
  const std::span<const std::uint8_t> file = mapping_->all();
  Header header;
  std::memcpy(&header, file.data(), sizeof header);
  const std::string_view magic(header.magic.data(), header.magic.size());
  if (magic != pack_format::kMagic) {
    return mapping_->corrupt(fmt::format("expected a pack, which begins with \"{}\"", pack_format::kMagic));
  }
  const std::uint32_t crc = pack_format::crc_of(file.first(offsetof(Header, header_crc)));
  if (crc != header.header_crc) {
    return mapping_->corrupt(
        fmt::format("the header is damaged: expected checksum {:08x}, found {:08x}", header.header_crc, crc));
  }
  if (header.version != pack_format::kVersion) {
    return {ErrorCode::kUnsupported,
            fmt::format("{}: version {} of the format; this program knows version {}: make the "
                        "pack with this program's `lockstep pack`, or take a newer release",
                        mapping_->path, header.version, pack_format::kVersion)};
  }
  if (const std::string fault = fault_of(header, file); !fault.empty()) return mapping_->corrupt(fault);
  LOCKSTEP_RETURN_IF_ERROR(read_classes(file.subspan(header.names_offset), header.classes));
  auto entries = std::make_shared<std::vector<Entry>>(header.pictures);
  static_assert(sizeof(Entry) == kEntryBytes);
  if (!entries->empty()) std::memcpy(entries->data(), file.data() + header.index_offset, entries->size() * kEntryBytes);
  const auto inside = [](std::uint64_t offset, std::uint64_t length, std::uint64_t begin, std::uint64_t end) {
    return offset >= begin && offset <= end && length <= end - offset;
  };
  for (std::size_t i = 0; i < entries->size(); ++i) {
    const Entry& entry = (*entries)[i];
    if (inside(entry.offset, entry.length, kHeaderBytes, header.index_offset) && entry.label < header.classes &&
        inside(entry.name_offset, entry.name_length, header.names_offset, file.size())) {
      continue;
    }
    return mapping_->corrupt(fmt::format("impossible entry for picture {}: {} bytes at byte {}, class {} of {}", i,
                                         entry.length, entry.offset, entry.label, header.classes));
  }
  entries_ = std::move(entries);
  return {};
}

Status PackReader::read_classes(std::span<const std::uint8_t> names, std::uint64_t count) {
  auto classes = std::make_shared<std::vector<std::string>>();
  for (std::uint64_t i = 0; i < count; ++i) {
    constexpr std::size_t kLengthBytes = sizeof(std::uint32_t);
    const std::size_t room = names.size() < kLengthBytes ? 0 : names.size() - kLengthBytes;
    const std::uint32_t length = names.size() < kLengthBytes ? 1 : pack_format::read_number<std::uint32_t>(names, 0);
    if (length > room) return mapping_->corrupt(fmt::format("the name of class {} of {} is cut off", i, count));
    const std::span<const std::uint8_t> name = names.subspan(kLengthBytes, length);
    classes->emplace_back(name.begin(), name.end());
    names = names.subspan(kLengthBytes + length);
  }
  classes_ = std::move(classes);
  return {};
}

std::span<const std::uint8_t> PackReader::bytes(std::int64_t index) const {
  return mapping_->all().subspan(entry(index).offset, entry(index).length);
}

std::string_view PackReader::name(std::int64_t index) const {
  const auto name = mapping_->all().subspan(entry(index).name_offset, entry(index).name_length);
  return {reinterpret_cast<const char*>(name.data()), name.size()};
}

Status PackReader::verify(std::int64_t index) const {
  const std::uint32_t crc = pack_format::crc_of(bytes(index));
  if (crc == entry(index).crc) return {};
  return mapping_->corrupt(
      fmt::format("picture {} ({}) is damaged: expected checksum {:08x}, found {:08x} ({} bytes "
                  "at byte {})",
                  index, printable(name(index)), entry(index).crc, crc, entry(index).length, entry(index).offset));
}

// --- Writing

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
