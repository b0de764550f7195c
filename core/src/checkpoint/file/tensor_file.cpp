#include "lockstep/checkpoint/tensor_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <span>

#include "base/regular_file.h"
#include "error_context.h"
#include "file_checksum.h"
#include "file_kind.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/checkpoint/errors.h"
#include "state_tensor_file.h"
#include "tensor_file_header.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor files hold little-endian bytes");

constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // the same limit as in other readers of the format

// A file that is hashed while it is read.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path)
      : path_(path), file_(or_throw(RegularFile::open(path))), size_(file_.size()) {}

  // Reads the header's length and returns its text.
  std::string read_header_text() {
    std::uint64_t length = 0;
    std::array<char, kShownHead> head{};
    const ssize_t got = ::pread(file_.fd(), head.data(), head.size(), 0);
    if (const std::string other = other_file({head.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))});
        !other.empty()) {
      fail(ErrorCode::kCorrupt, other);
    }
    if (size_ < sizeof(length)) fail(ErrorCode::kCorrupt, fmt::format("damaged: only {} bytes long", size_));
    read(&length, sizeof(length));
    if (length > size_ - sizeof(length) || length > kMostHeaderBytes) {
      fail(ErrorCode::kCorrupt, fmt::format("damaged: a header of {} bytes in a file of {}", length, size_));
    }
    std::string text(length, '\0');
    read(text.data(), length);
    data_bytes_ = size_ - sizeof(length) - length;
    return text;
  }

  void read(void* bytes, std::size_t count) {
    if (or_throw(file_.read({static_cast<std::uint8_t*>(bytes), count})) < count) {
      fail(ErrorCode::kCorrupt, "damaged: the file became shorter while it was read");
    }
  }

  int fd() const { return file_.fd(); }
  std::uint64_t size() const { return size_; }

  TensorFileHeader parse(std::string_view text) const {
    try {
      return parse_header(text, data_bytes_);
    } catch (const CheckpointError& error) {
      fail(error.code(), error.code() == ErrorCode::kCorrupt ? fmt::format("damaged: {}", error.what()) : error.what());
    }
  }

  [[noreturn]] void fail(ErrorCode code, const std::string& what) const {
    throw CheckpointError(code, fmt::format("{}: {}", path_.native(), what));
  }

 private:
  template <typename T>
  static T or_throw(Result<T> result) {
    if (!result.ok()) throw CheckpointError(result.status().code(), result.status().message());
    return std::move(result).value();
  }

  std::filesystem::path path_;
  RegularFile file_;
  std::uint64_t size_;
  std::uint64_t data_bytes_ = 0;
};

// An error of the file system as a CheckpointError.
void check_written(const Status& status) {
  if (status.ok()) return;
  throw CheckpointError(status.code(), status.message() + "; checkpoints saved earlier are untouched");
}

AtomicFile create_file(const std::filesystem::path& path) {
  auto file = AtomicFile::create(path);
  check_written(file.status());
  return std::move(file).value();
}

std::span<const std::uint8_t> as_bytes(const void* data, std::size_t count) {
  return {static_cast<const std::uint8_t*>(data), count};
}

// Calls `use` for one piece of `bytes` after the other.
template <typename Byte, typename Use>
void for_each_piece(std::span<Byte> bytes, Use use) {
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), FileChecksum::kPiece))) {
    use(bytes.first(std::min(bytes.size(), FileChecksum::kPiece)));
  }
}

// The elements on the CPU in memory order without gaps. LibTorch calculates the values of conjugated and negated views
// and of tensors of zeros when they are copied: their own memory holds other values or does not exist.
torch::Tensor bytes_in_order(const torch::Tensor& tensor) {
  torch::Tensor values = tensor.detach();
  const bool lazy = values.is_conj() || values.is_neg() || values._is_zerotensor();
  if (values.is_cpu() && values.is_contiguous() && !lazy) return values;
  return torch::empty(values.sizes(), values.scalar_type()).copy_(values);
}

void write(const std::filesystem::path& path, const TensorFile& file, const ChecksumKind& kind) {
  TensorFileHeader header;
  const std::string text = in_context(path.native(), [&] {
    header = {lay_out(file.tensors), file.metadata};
    header.metadata[std::string(kFormatKey)] = kFormat;
    header.metadata[std::string(kind.key)] = std::string(kind.digits, '0');
    return format_header(header);
  });
  if (text.size() > kMostHeaderBytes) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          fmt::format("{}: names and text values take {} bytes; no reader accepts over {}",
                                      path.native(), text.size(), kMostHeaderBytes));
  }
  const ChecksumPlace place = find_checksum(text).value();

  AtomicFile out = create_file(path);
  const std::uint64_t length = text.size();
  check_written(out.append(as_bytes(&length, sizeof(length))));
  check_written(out.append(as_bytes(text.data(), text.size())));
  FileChecksum checksum(text, place, header.entries.empty() ? 0 : header.entries.back().end);
  for (const TensorEntry& entry : header.entries) {
    const torch::Tensor tensor = in_context(fmt::format("{}: cannot read tensor \"{}\"", path.native(), entry.name),
                                            [&] { return bytes_in_order(file.tensors.at(entry.name)); });
    for_each_piece(as_bytes(tensor.const_data_ptr(), entry.end - entry.begin), [&](const auto piece) {
      checksum.add(tensor, piece);
      check_written(out.append(piece));
    });
  }
  const std::string found = checksum.digits();
  check_written(out.overwrite(sizeof(length) + place.at, as_bytes(found.data(), found.size())));
  check_written(out.commit());
}

// Whether the metadata say that the file was written here, so that it must have a checksum.
bool must_have_checksum(const TensorFileHeader& header) {
  const auto has = [&](std::string_view key) { return header.metadata.contains(std::string(key)); };
  return has(kFormatKey) || has(kSha256.key) || has(kCrc32.key);
}

// Whether the header is not as Lockstep writes it, although its metadata say so.
bool is_rewritten(std::string_view text, const TensorFileHeader& header) {
  return format_header(header) != text;
}

[[noreturn]] void fail_rewritten(const Reader& reader) {
  reader.fail(
      ErrorCode::kCorrupt,
      "another program has written it anew and kept the metadata lockstep.*, whose checksum is that of the file "
      "before: read it with Checksum::kIgnored (lockstep checkpoint convert --ignore-checksum), or write it "
      "without these metadata");
}

void require_equal(const Reader& reader, std::string_view text, const TensorFileHeader& header,
                   const ChecksumPlace& place, FileChecksum& checksum) {
  const std::string found = checksum.digits();
  if (found == text.substr(place.at, place.kind.digits)) return;
  if (is_rewritten(text, header)) fail_rewritten(reader);
  reader.fail(ErrorCode::kCorrupt,
              fmt::format("damaged: its contents do not fit its checksum ({} {:.16}...)", place.kind.name, found));
}

// Metadata of the file's writer, without what belongs to the format.
std::map<std::string, std::string> written_metadata(TensorFileHeader& header) {
  for (const std::string_view key : {kFormatKey, kSha256.key, kCrc32.key}) header.metadata.erase(std::string(key));
  return std::move(header.metadata);
}

}  // namespace

void write_tensor_file(const std::filesystem::path& path, const TensorFile& file) {
  write(path, file, kSha256);
}

void write_state_tensor_file(const std::filesystem::path& path, const TensorFile& file) {
  write(path, file, kCrc32);
}

TensorFile read_tensor_file(const std::filesystem::path& path, Checksum wanted) {
  Reader reader(path);
  const std::string text = reader.read_header_text();
  TensorFileHeader header = reader.parse(text);
  const auto place = wanted == Checksum::kIgnored ? std::nullopt : find_checksum(text);
  if (!place && wanted != Checksum::kIgnored && (wanted == Checksum::kRequired || must_have_checksum(header))) {
    if (must_have_checksum(header) && is_rewritten(text, header)) fail_rewritten(reader);
    reader.fail(ErrorCode::kCorrupt,
                fmt::format("damaged: its metadata has no valid {} or {}", kSha256.key, kCrc32.key));
  }
  std::optional<FileChecksum> checksum;
  if (place) checksum.emplace(text, *place, header.entries.empty() ? 0 : header.entries.back().end);
  TensorFile file;
  for (const TensorEntry& entry : header.entries) {
    torch::Tensor tensor = in_context(fmt::format("{}: no memory for tensor \"{}\"", path.native(), entry.name),
                                      [&] { return torch::empty(entry.shape, entry.dtype); });
    auto* const bytes = static_cast<std::uint8_t*>(tensor.mutable_data_ptr());
    for_each_piece(std::span(bytes, entry.end - entry.begin), [&](const auto piece) {
      reader.read(piece.data(), piece.size());
      if (checksum) checksum->add(tensor, piece);
    });
    file.tensors[entry.name] = std::move(tensor);
  }
  if (place) require_equal(reader, text, header, *place, *checksum);
  file.metadata = written_metadata(header);
  return file;
}

namespace {

// A file in memory. Writing to the memory does not change the file.
class Mapping {
 public:
  Mapping(int fd, std::uint64_t size) : size_(size) {
    constexpr int kFlags = MAP_PRIVATE | MAP_NORESERVE;
    void* const begin = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, kFlags, fd, 0);
    if (begin != MAP_FAILED) begin_ = static_cast<char*>(begin);
  }
  ~Mapping() {
    if (begin_ != nullptr) ::munmap(begin_, size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool valid() const { return begin_ != nullptr; }
  char* at(std::uint64_t offset) const { return begin_ + offset; }

  // Brings all pages; 0, or the error of the disk. Kernels before 5.14 bring them when they are used.
  int bring() const {
    constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which headers before glibc 2.35 lack
    if (::madvise(begin_, size_, kPopulateRead) == 0 || errno == EINVAL) return 0;
    return errno;
  }

 private:
  std::uint64_t size_;
  char* begin_ = nullptr;
};

}  // namespace

std::optional<TensorFile> map_tensor_file(const std::filesystem::path& path, Checksum wanted) {
  Reader reader(path);
  const std::string text = reader.read_header_text();
  TensorFileHeader header = reader.parse(text);
  const bool ignored = wanted == Checksum::kIgnored;
  const auto place = ignored ? std::nullopt : find_checksum(text);
  const bool copied = place ? place->kind.key == kSha256.key : !ignored && must_have_checksum(header);
  if (copied) return std::nullopt;
  const std::uint64_t data = sizeof(std::uint64_t) + text.size();
  const auto is_aligned = [&](const TensorEntry& entry) {
    return (data + entry.begin) % c10::elementSize(entry.dtype) == 0;
  };
  if (!std::all_of(header.entries.begin(), header.entries.end(), is_aligned)) return std::nullopt;
  const auto mapping = std::make_shared<const Mapping>(reader.fd(), reader.size());
  if (!mapping->valid()) return std::nullopt;
  if (const int error = mapping->bring(); error != 0) {
    reader.fail(ErrorCode::kIo, fmt::format("cannot read it: {}", std::strerror(error)));
  }
  if (place) {
    FileChecksum checksum(text, *place, reader.size() - data);
    checksum.add({}, as_bytes(mapping->at(data), reader.size() - data));
    require_equal(reader, text, header, *place, checksum);
  }
  TensorFile file;
  for (const TensorEntry& entry : header.entries) {
    const bool empty = entry.begin == entry.end;
    file.tensors[entry.name] =
        empty ? torch::empty(entry.shape, entry.dtype)
              : torch::from_blob(
                    mapping->at(data + entry.begin), entry.shape, [mapping](void*) {}, torch::dtype(entry.dtype));
  }
  file.metadata = written_metadata(header);
  return file;
}

std::map<std::string, std::string> read_tensor_file_metadata(const std::filesystem::path& path) {
  Reader reader(path);
  return reader.parse(reader.read_header_text()).metadata;
}

}  // namespace lockstep::checkpoint
