#include "site/devices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/number_text.h"

namespace lockstep::site {
namespace {

std::optional<int> whole(std::string_view text) {
  const std::optional<int> value = number_from_text<int>(text);
  return value.value_or(-1) < 0 ? std::nullopt : value;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t comma = text.find(',');
    std::string_view part = text.substr(0, comma);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    parts.emplace_back(part);
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

Status wrong_request(std::string_view text, std::string_view why) {
  return Status(ErrorCode::kInvalidArgument,
                fmt::format("--devices '{}': {}; expected GPU numbers such as 0,2, auto:N or all", text, why));
}

std::string numbers_of(std::size_t count) {
  return count == 0 ? "none" : count == 1 ? "0" : fmt::format("0 to {}", count - 1);
}

// The GPUs of a request in the order in which to try them.
Result<std::vector<Gpu>> candidates(const DeviceRequest& request, const std::vector<Gpu>& visible) {
  if (visible.empty()) {
    return Status(ErrorCode::kUnavailable, "--devices: no NVIDIA GPU is visible here (CUDA_VISIBLE_DEVICES)");
  }
  std::vector<Gpu> gpus;
  if (request.kind == DeviceRequest::Kind::kList) {
    for (const int number : request.numbers) {
      if (static_cast<std::size_t>(number) >= visible.size()) {
        return Status(ErrorCode::kInvalidArgument, fmt::format("--devices: there is no GPU {}; there are {}: {}",
                                                               number, visible.size(), numbers_of(visible.size())));
      }
      gpus.push_back(visible[static_cast<std::size_t>(number)]);
    }
    return gpus;
  }
  gpus = visible;
  if (request.kind == DeviceRequest::Kind::kAll) return gpus;
  if (static_cast<std::size_t>(request.count) > gpus.size()) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("--devices auto:{}: only {} are visible here", request.count, gpus.size()));
  }
  std::stable_sort(gpus.begin(), gpus.end(), [](const Gpu& a, const Gpu& b) {
    return std::pair(!a.health.ok(), b.free_bytes) < std::pair(!b.health.ok(), a.free_bytes);
  });
  return gpus;
}

std::string lease_name(const Gpu& gpu) {
  return "gpu-" + gpu.uuid;
}

}  // namespace

Result<DeviceRequest> parse_devices(std::string_view text) {
  DeviceRequest request;
  if (text == "all") {
    request.kind = DeviceRequest::Kind::kAll;
    return request;
  }
  if (text.starts_with("auto:")) {
    const std::optional<int> count = whole(text.substr(5));
    if (!count || *count < 1) return wrong_request(text, "N must be a number from 1");
    request.kind = DeviceRequest::Kind::kAuto;
    request.count = *count;
    return request;
  }
  for (const std::string& part : split(text)) {
    const std::optional<int> number = whole(part);
    if (!number) return wrong_request(text, fmt::format("'{}' is not a GPU's number", part));
    if (std::find(request.numbers.begin(), request.numbers.end(), *number) != request.numbers.end()) {
      return wrong_request(text, fmt::format("GPU {} is there twice", *number));
    }
    request.numbers.push_back(*number);
  }
  return request;
}

std::vector<Gpu> visible_gpus(const std::vector<Gpu>& all, const std::optional<std::string>& visible_devices) {
  if (!visible_devices) return all;
  std::vector<Gpu> gpus;
  for (const std::string& entry : split(*visible_devices)) {
    const std::optional<int> number = whole(entry);
    const auto found = std::find_if(all.begin(), all.end(), [&](const Gpu& gpu) {
      return number ? gpu.index == *number : entry.size() > 4 && gpu.uuid.starts_with(entry);
    });
    if (found == all.end()) break;
    gpus.push_back(*found);
  }
  return gpus;
}

std::optional<std::string> visible_devices_variable() {
  // Not from Environment, which takes a variable without a value as not set.
  const char* const value = std::getenv("CUDA_VISIBLE_DEVICES");
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

int count_visible_gpus() {
  const auto variable = visible_devices_variable();
  if (variable && variable->starts_with("MIG-")) return 1;
  auto inventory = list_gpus();
  return inventory.ok() ? static_cast<int>(visible_gpus(inventory->gpus, variable).size()) : 0;
}

Result<TakenDevices> take_devices(const DeviceRequest& request, const std::vector<Gpu>& visible,
                                  const LeaseFolder& leases) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Gpu> wanted, candidates(request, visible));
  // One job chooses at a time: two that need three of four GPUs would else take two each and both give up.
  LOCKSTEP_ASSIGN_OR_RETURN(const Lease choosing, leases.take("choosing", Deadline::after(std::chrono::seconds(10))));
  const bool any = request.kind == DeviceRequest::Kind::kAuto;
  const std::size_t count = any ? static_cast<std::size_t>(request.count) : wanted.size();
  TakenDevices taken;
  std::vector<std::string> reasons;
  for (const Gpu& gpu : wanted) {
    if (taken.gpus.size() == count) break;
    if (!gpu.health.ok()) {
      reasons.push_back(gpu.health.message());
      continue;
    }
    auto asked = leases.try_take(lease_name(gpu));
    if (!asked.ok()) {
      if (!any) return asked.status();
      reasons.push_back(asked.status().message());
      continue;
    }
    std::optional<Lease> lease = std::move(asked).value();
    if (!lease) {
      reasons.push_back(fmt::format("GPU {} is leased by {}", gpu.index, leases.holder_of(lease_name(gpu))));
      continue;
    }
    taken.gpus.push_back(gpu);
    taken.leases.push_back(std::move(*lease));
  }
  if (taken.gpus.size() < count) {
    return Status(ErrorCode::kUnavailable, fmt::format("--devices: {} GPUs are wanted and {} can be had now: {}", count,
                                                       taken.gpus.size(), fmt::join(reasons, "; ")));
  }
  // Neighbours on the bus get neighbouring ranks. A list keeps the user's order.
  if (any)
    std::sort(taken.gpus.begin(), taken.gpus.end(), [](const Gpu& a, const Gpu& b) { return a.index < b.index; });
  return taken;
}

Result<std::vector<std::vector<Gpu>>> share_gpus(const std::vector<Gpu>& gpus, int workers) {
  const auto count = static_cast<std::size_t>(workers);
  if (gpus.size() < count || gpus.size() % count != 0) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("{} workers cannot share {} GPUs equally; give --nproc-per-node {} or as many --devices "
                              "as workers",
                              workers, gpus.size(), gpus.size()));
  }
  const std::size_t each = gpus.size() / count;
  std::vector<std::vector<Gpu>> shares(count);
  for (std::size_t i = 0; i < gpus.size(); ++i) shares[i / each].push_back(gpus[i]);
  return shares;
}

launch::Variables cuda_variables(const std::vector<Gpu>& gpus) {
  std::vector<int> indexes;
  indexes.reserve(gpus.size());
  for (const Gpu& gpu : gpus) indexes.push_back(gpu.index);
  return {{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES", fmt::format("{}", fmt::join(indexes, ","))}};
}

}  // namespace lockstep::site
