#include "file_checksum.h"

#include <fmt/format.h>

#include "crc32.h"

namespace lockstep::checkpoint {

std::optional<ChecksumPlace> find_checksum(std::string_view text) {
  for (const ChecksumKind& kind : {kSha256, kCrc32}) {
    // JSON escapes quotes inside of texts, so this can only be the key itself.
    const std::string before = fmt::format("\"{}\":\"", kind.key);
    const std::size_t found = text.find(before);
    if (found == std::string_view::npos) continue;
    const std::size_t at = found + before.size();
    if (text.size() > at + kind.digits && text[at + kind.digits] == '"') return ChecksumPlace{kind, at};
  }
  return std::nullopt;
}

FileChecksum::FileChecksum(std::string text, const ChecksumPlace& place, std::uint64_t data) {
  text.replace(place.at, place.kind.digits, place.kind.digits, '0');
  const std::uint64_t length = text.size();
  if (place.kind.key == kCrc32.key) {
    crc_ = crc32_of(crc32_of(0, &length, sizeof(length)), text.data(), text.size());
    return;
  }
  Sha256 hash;
  hash.update(&length, sizeof(length));
  hash.update(text);
  hash_.emplace(std::move(hash), data);
}

void FileChecksum::add(const torch::Tensor& tensor, std::span<const std::uint8_t> bytes) {
  if (hash_) return hash_->add(tensor, bytes);
  crc_ = crc32_of(crc_, bytes.data(), bytes.size());
}

std::string FileChecksum::digits() {
  return hash_ ? hash_->digits() : fmt::format("{:08x}", crc_);
}

}  // namespace lockstep::checkpoint
