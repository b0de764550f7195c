#include <algorithm>
#include <utility>

#include "checkpoint/file/crc32.h"
#include "zip_file.h"

namespace lockstep::checkpoint {
namespace {

using zip::append_number;

constexpr std::size_t kChunk = 1 << 20;        // CRC while still in cache
constexpr std::uint64_t kOffsetOfCrc = 14;     // in a local header
constexpr std::uint16_t kDate = (1 << 5) | 1;  // 1980-01-01: equal contents make equal files

std::uint16_t version(bool zip64) {
  return zip64 ? 45 : 20;  // of the format: 4.5 has zip64
}

}  // namespace

std::uint32_t ZipWriter::in_32_bits(std::uint64_t number) const {
  return is_large(number) ? zip::k32 : static_cast<std::uint32_t>(number);
}

std::string ZipWriter::common_fields(const Entry& entry, bool zip64, std::size_t extra) const {
  std::string fields;
  append_number(fields, version(zip64));  // that a reader needs
  append_number(fields, zip::kUtf8Names);
  append_number<std::uint16_t>(fields, 0);  // stored
  append_number<std::uint16_t>(fields, 0);  // time
  append_number(fields, kDate);
  append_number(fields, entry.crc);
  append_number(fields, in_32_bits(entry.size));
  append_number(fields, in_32_bits(entry.size));
  append_number(fields, static_cast<std::uint16_t>(entry.name.size()));
  append_number(fields, static_cast<std::uint16_t>(extra));
  return fields;
}

std::string ZipWriter::local_header(const Entry& entry) const {
  const bool zip64 = is_large(entry.size);
  std::string extra;
  if (zip64) {
    append_number(extra, zip::kZip64Extra);
    append_number<std::uint16_t>(extra, 16);
    append_number(extra, entry.size);
    append_number(extra, entry.size);
  }
  const std::uint64_t data = entry.header + zip::kLocalHeaderBytes + entry.name.size() + extra.size() + 4;
  const std::uint64_t padding = (kAlignment - data % kAlignment) % kAlignment;
  append_number(extra, zip::kPaddingExtra);
  append_number(extra, static_cast<std::uint16_t>(padding));
  extra.append(padding, '\0');

  std::string header;
  append_number(header, zip::kLocalHeader);
  return header + common_fields(entry, zip64, extra.size()) + entry.name + extra;
}

std::string ZipWriter::directory_record(const Entry& entry) const {
  std::string numbers;
  if (is_large(entry.size)) {
    append_number(numbers, entry.size);
    append_number(numbers, entry.size);
  }
  if (is_large(entry.header)) append_number(numbers, entry.header);
  std::string extra;
  if (!numbers.empty()) {
    append_number(extra, zip::kZip64Extra);
    append_number(extra, static_cast<std::uint16_t>(numbers.size()));
    extra += numbers;
  }
  std::string record;
  append_number(record, zip::kDirectoryEntry);
  append_number(record, version(!extra.empty()));  // of the writer
  record += common_fields(entry, !extra.empty(), extra.size());
  append_number<std::uint16_t>(record, 0);  // comment
  append_number<std::uint16_t>(record, 0);  // disk
  append_number<std::uint16_t>(record, 0);  // attributes
  append_number<std::uint32_t>(record, 0);
  append_number(record, in_32_bits(entry.header));
  return record + entry.name + extra;
}

std::string ZipWriter::end_records(std::uint64_t directory, std::uint64_t size) const {
  const std::uint64_t count = entries_.size();
  const bool many = count >= std::min<std::uint64_t>(zip64_from_, zip::k16);
  std::string end;
  if (many || is_large(directory) || is_large(size)) {
    append_number(end, zip::kZip64End);
    append_number<std::uint64_t>(end, zip::kZip64EndBytes - 12);
    append_number(end, version(true));
    append_number(end, version(true));
    append_number<std::uint32_t>(end, 0);  // disks
    append_number<std::uint32_t>(end, 0);
    append_number(end, count);
    append_number(end, count);
    append_number(end, size);
    append_number(end, directory);
    append_number(end, zip::kZip64Locator);
    append_number<std::uint32_t>(end, 0);
    append_number(end, directory + size);
    append_number<std::uint32_t>(end, 1);
  }
  append_number(end, zip::kEnd);
  append_number<std::uint32_t>(end, 0);  // disks
  append_number(end, many ? zip::k16 : static_cast<std::uint16_t>(count));
  append_number(end, many ? zip::k16 : static_cast<std::uint16_t>(count));
  append_number(end, in_32_bits(size));
  append_number(end, in_32_bits(directory));
  append_number<std::uint16_t>(end, 0);  // comment
  return end;
}

Status ZipWriter::add(std::string name, std::span<const std::uint8_t> bytes) {
  Entry entry{std::move(name), out_.size(), bytes.size(), 0};
  LOCKSTEP_RETURN_IF_ERROR(append(local_header(entry)));
  for (std::size_t done = 0; done < bytes.size(); done += kChunk) {
    const auto piece = bytes.subspan(done, std::min(kChunk, bytes.size() - done));
    entry.crc = crc32_of(entry.crc, piece.data(), piece.size());
    LOCKSTEP_RETURN_IF_ERROR(out_.append(piece));
  }
  std::string crc;
  append_number(crc, entry.crc);
  LOCKSTEP_RETURN_IF_ERROR(
      out_.overwrite(entry.header + kOffsetOfCrc, {reinterpret_cast<const std::uint8_t*>(crc.data()), crc.size()}));
  entries_.push_back(std::move(entry));
  return {};
}

Status ZipWriter::finish() {
  const std::uint64_t directory = out_.size();
  std::string records;
  for (const Entry& entry : entries_) records += directory_record(entry);
  return append(records + end_records(directory, records.size()));
}

}  // namespace lockstep::checkpoint
