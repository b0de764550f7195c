#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string_view>

#include "base/printable.h"
#include "checkpoint/file/crc32.h"
#include "lockstep/checkpoint/errors.h"
#include "zip_file.h"

namespace lockstep::checkpoint {
namespace {

using zip::number_at;

constexpr std::uint64_t kMostDirectoryBytes = std::uint64_t{1} << 28;  // over two million entries
constexpr std::size_t kCheckedChunk = 1 << 20;                         // checked while still in cache

template <typename... Arguments>
[[noreturn]] void damaged_zip(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  throw CheckpointError(ErrorCode::kCorrupt,
                        "damaged zip file: " + fmt::format(format, std::forward<Arguments>(arguments)...));
}

template <typename... Arguments>
[[noreturn]] void unsupported_zip(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  throw CheckpointError(ErrorCode::kUnsupported, fmt::format(format, std::forward<Arguments>(arguments)...));
}

std::string bytes_at(const FileBytes& file, std::uint64_t offset, std::size_t count) {
  std::string bytes(count, '\0');
  file.read(offset, bytes.data(), count);
  return bytes;
}

struct Directory {
  std::uint64_t entries;
  std::uint64_t offset;
  std::uint64_t size;
  std::uint64_t limit;  // where the records after the directory begin
};

// The end record is the last thing in a file; only a comment or other bytes (a disk's zeros), at most 64 KiB, may
// follow.
std::uint64_t find_end(const FileBytes& file, std::string& record) {
  constexpr std::size_t kMostComment = zip::k16;
  if (file.size() < zip::kEndBytes) damaged_zip("it has only {} bytes", file.size());
  const std::size_t searched =
      static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), zip::kEndBytes + kMostComment));
  const std::uint64_t begin = file.size() - searched;
  const std::string tail = bytes_at(file, begin, searched);
  for (std::size_t at = searched - zip::kEndBytes + 1; at-- > 0;) {
    if (number_at<std::uint32_t>(tail, at) != zip::kEnd) continue;
    if (at + zip::kEndBytes + number_at<std::uint16_t>(tail, at + 20) > searched) continue;
    record = tail.substr(at, zip::kEndBytes);
    return begin + at;
  }
  damaged_zip("its list of entries is missing (truncated?)");
}

std::optional<Directory> zip64_directory(const FileBytes& file, std::uint64_t end) {
  if (end < zip::kZip64LocatorBytes + zip::kZip64EndBytes) return std::nullopt;
  const std::string locator = bytes_at(file, end - zip::kZip64LocatorBytes, zip::kZip64LocatorBytes);
  if (number_at<std::uint32_t>(locator, 0) != zip::kZip64Locator) return std::nullopt;
  const auto offset = number_at<std::uint64_t>(locator, 8);
  if (offset > end - zip::kZip64LocatorBytes - zip::kZip64EndBytes)
    damaged_zip("its zip64 record is at byte {}", offset);
  const std::string record = bytes_at(file, offset, zip::kZip64EndBytes);
  if (number_at<std::uint32_t>(record, 0) != zip::kZip64End) damaged_zip("byte {} is no zip64 record", offset);
  if (number_at<std::uint32_t>(record, 16) != 0 || number_at<std::uint32_t>(record, 20) != 0) {
    unsupported_zip("a zip file of several disks");
  }
  return Directory{number_at<std::uint64_t>(record, 32), number_at<std::uint64_t>(record, 48),
                   number_at<std::uint64_t>(record, 40), offset};
}

Directory find_directory(const FileBytes& file) {
  std::string record;
  const std::uint64_t end = find_end(file, record);
  if (number_at<std::uint16_t>(record, 4) != 0 && number_at<std::uint16_t>(record, 4) != zip::k16) {
    unsupported_zip("a zip file of several disks");
  }
  Directory found{number_at<std::uint16_t>(record, 10), number_at<std::uint32_t>(record, 16),
                  number_at<std::uint32_t>(record, 12), end};
  if (found.entries == zip::k16 || found.offset == zip::k32 || found.size == zip::k32) {
    if (const auto larger = zip64_directory(file, end)) found = *larger;
  }
  if (found.offset > found.limit || found.size > found.limit - found.offset) {
    damaged_zip("its list of entries is at bytes {} + {} of {}", found.offset, found.size, file.size());
  }
  if (found.size > kMostDirectoryBytes) damaged_zip("its list of entries has {} bytes", found.size);
  if (found.entries > found.size / zip::kDirectoryEntryBytes) {
    damaged_zip("it promises {} entries in {} bytes", found.entries, found.size);
  }
  return found;
}

// One record of the directory, before its data have been found.
struct Listed {
  ZipEntry entry;
  std::uint64_t header;  // offset of its local header
};

// Numbers that do not fit 32 bits are in an extra field, in this order, each only if it is needed.
void read_zip64_extra(std::string_view extra, Listed& listed, std::uint64_t& stored) {
  while (extra.size() >= 4) {
    const auto id = number_at<std::uint16_t>(extra, 0);
    const std::size_t length = number_at<std::uint16_t>(extra, 2);
    if (length > extra.size() - 4) damaged_zip("entry \"{}\" has a broken extra field", listed.entry.name);
    if (id == zip::kZip64Extra) {
      std::string_view numbers = extra.substr(4, length);
      for (std::uint64_t* number : {&listed.entry.size, &stored, &listed.header}) {
        if (*number != zip::k32) continue;
        if (numbers.size() < 8) damaged_zip("entry \"{}\" lacks a zip64 number", listed.entry.name);
        *number = number_at<std::uint64_t>(numbers, 0);
        numbers.remove_prefix(8);
      }
      return;
    }
    extra.remove_prefix(4 + length);
  }
}

// Reads the record at the beginning of `rest` and takes it off.
Listed take_record(std::string_view& rest) {
  if (rest.size() < zip::kDirectoryEntryBytes || number_at<std::uint32_t>(rest, 0) != zip::kDirectoryEntry) {
    damaged_zip("its list of entries is broken");
  }
  const std::size_t name = number_at<std::uint16_t>(rest, 28);
  const std::size_t extra = number_at<std::uint16_t>(rest, 30);
  const std::size_t total = zip::kDirectoryEntryBytes + name + extra + number_at<std::uint16_t>(rest, 32);
  if (total > rest.size()) damaged_zip("its list of entries is cut off");
  Listed listed{{printable(rest.substr(zip::kDirectoryEntryBytes, name)), 0, number_at<std::uint32_t>(rest, 24),
                 number_at<std::uint32_t>(rest, 16)},
                number_at<std::uint32_t>(rest, 42)};
  std::uint64_t stored = number_at<std::uint32_t>(rest, 20);
  if ((number_at<std::uint16_t>(rest, 8) & zip::kEncrypted) != 0) {
    unsupported_zip("entry \"{}\" of the zip file is encrypted", listed.entry.name);
  }
  listed.entry.method = number_at<std::uint16_t>(rest, 10);
  read_zip64_extra(rest.substr(zip::kDirectoryEntryBytes + name, extra), listed, stored);
  if (listed.entry.method != 0 && listed.entry.method != zip::kDeflated) {
    unsupported_zip("entry \"{}\" of the zip file is compressed by method {}: load it and save it again in Python",
                    listed.entry.name, listed.entry.method);
  }
  if (stored != listed.entry.size && listed.entry.method == 0) {
    damaged_zip("entry \"{}\" has {} bytes and {} bytes", listed.entry.name, stored, listed.entry.size);
  }
  listed.entry.held = stored;
  rest.remove_prefix(total);
  return listed;
}

void find_data(const FileBytes& file, Listed& listed, std::uint64_t limit) {
  ZipEntry& entry = listed.entry;
  if (listed.header > limit || limit - listed.header < zip::kLocalHeaderBytes) {
    damaged_zip("entry \"{}\" begins at byte {}", entry.name, listed.header);
  }
  const std::string header = bytes_at(file, listed.header, zip::kLocalHeaderBytes);
  if (number_at<std::uint32_t>(header, 0) != zip::kLocalHeader) {
    damaged_zip("entry \"{}\" has no header at byte {}", entry.name, listed.header);
  }
  entry.offset = listed.header + zip::kLocalHeaderBytes + number_at<std::uint16_t>(header, 26) +
                 number_at<std::uint16_t>(header, 28);
  if (entry.offset > limit || entry.held > limit - entry.offset) {
    damaged_zip("entry \"{}\" has {} bytes from byte {} on, but the entries end at byte {}", entry.name, entry.held,
                entry.offset, limit);
  }
}

void require_apart(const std::vector<Listed>& listed) {
  std::set<std::string_view> names;  // not hashed: the names may be chosen to collide
  for (std::size_t i = 0; i < listed.size(); ++i) {
    const ZipEntry& entry = listed[i].entry;
    if (!names.insert(entry.name).second) damaged_zip("entry \"{}\" is there twice", entry.name);
    if (i + 1 < listed.size() && entry.offset + entry.held > listed[i + 1].header) {
      damaged_zip("entries \"{}\" and \"{}\" overlap", entry.name, listed[i + 1].entry.name);
    }
  }
}

// Deflating makes zeros a thousand times smaller, so a short file could ask for any memory.
void require_bounded(const std::vector<Listed>& listed, std::uint64_t file, ReadAllowance& allowance) {
  constexpr std::uint64_t kTimes = 64;
  const std::uint64_t most = allowance.inflated + kTimes * file;
  std::uint64_t all = 0;
  for (const Listed& one : listed) {
    if (one.entry.size > most || (all += one.entry.size) > most) {
      unsupported_zip("the zip file has {} bytes, and would become over {} times as much: save it again in Python",
                      file, kTimes);
    }
  }
  allowance.inflated -= all - std::min(all, kTimes * file);
}

void inflate_entry(const FileBytes& file, const ZipEntry& entry, char* out) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw CheckpointError(ErrorCode::kIo, "no memory to inflate it");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> ended(&stream, inflateEnd);
  std::string piece(kCheckedChunk, '\0');
  std::uint64_t done = 0;
  int state = Z_OK;
  for (std::uint64_t taken = 0; taken < entry.held; taken += piece.size()) {
    const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), entry.held - taken));
    file.read(entry.offset + taken, piece.data(), count);
    stream.next_in = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_in = static_cast<uInt>(count);
    while (state == Z_OK && (stream.avail_in > 0 || stream.avail_out == 0)) {
      char beyond = 0;  // room, so that an entry without content can end
      const std::uint64_t left = entry.size - done;
      const uInt room = static_cast<uInt>(std::min<std::uint64_t>(std::max<std::uint64_t>(left, 1), kCheckedChunk));
      stream.next_out = reinterpret_cast<Bytef*>(left == 0 ? &beyond : out + done);
      stream.avail_out = room;
      state = inflate(&stream, Z_NO_FLUSH);
      const std::uint64_t made = room - stream.avail_out;
      if (made > left) damaged_zip("entry \"{}\" has more than its {} bytes", entry.name, entry.size);
      done += made;
    }
    if (state == Z_BUF_ERROR) state = Z_OK;  // it needs the next piece
  }
  if (state != Z_STREAM_END || done != entry.size) {
    damaged_zip("entry \"{}\" cannot be inflated to {} bytes", entry.name, entry.size);
  }
}

}  // namespace

std::vector<ZipEntry> read_zip_directory(const FileBytes& file, ReadAllowance& allowance) {
  const Directory directory = find_directory(file);
  const std::string records = bytes_at(file, directory.offset, static_cast<std::size_t>(directory.size));
  std::string_view rest = records;
  std::vector<Listed> listed;
  listed.reserve(directory.entries);
  for (std::uint64_t i = 0; i < directory.entries; ++i) listed.push_back(take_record(rest));
  for (Listed& entry : listed) find_data(file, entry, directory.offset);
  std::sort(listed.begin(), listed.end(), [](const Listed& a, const Listed& b) { return a.header < b.header; });
  require_apart(listed);
  require_bounded(listed, file.size(), allowance);
  std::vector<ZipEntry> entries;
  entries.reserve(listed.size());
  for (Listed& one : listed) entries.push_back(std::move(one.entry));
  return entries;
}

void read_zip_entry(const FileBytes& file, const ZipEntry& entry, void* out) {
  auto* const bytes = static_cast<char*>(out);
  if (entry.method != 0) inflate_entry(file, entry, bytes);
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < entry.size; done += kCheckedChunk) {
    const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(kCheckedChunk, entry.size - done));
    if (entry.method == 0) file.read(entry.offset + done, bytes + done, count);
    crc = crc32_of(crc, bytes + done, count);
  }
  if (entry.crc != 0 && crc != entry.crc) {
    damaged_zip("the bytes of entry \"{}\" do not fit their CRC (expected {:08x}, found {:08x})", entry.name, entry.crc,
                crc);
  }
}

}  // namespace lockstep::checkpoint
