// Collectives on values instead of tensors: no rank needs to know sizes or shapes beforehand.
//
//   std::string path = rank == 0 ? make_run_folder() : "";
//   lockstep::broadcast_object(path, 0);
//   std::vector<std::map<std::string, double>> metrics = lockstep::all_gather_object(mine);
//
// T is any type with an ObjectCodec (object_codec.h): numbers, strings, tensors, containers of these, modules,
// optimizers, and your own. T must be the same type on every rank. `src` and `dst` are ranks of the world. Each
// function but send_object and recv_object is collective over the group. All functions block. They cost one or two
// small operations more than a tensor of known size. Values go through the CPU engine; a tensor in a value arrives on
// the device on which the sender had it.
#pragma once

#include <exception>
#include <span>
#include <string>
#include <vector>

#include "lockstep/c10d/collectives.h"
#include "lockstep/c10d/object_codec.h"

namespace lockstep {

// These functions send bytes. The functions for objects below call them.
std::string broadcast_bytes(const std::string& bytes, int src, const CollectiveOptions& options = {},
                            CallSite site = CallSite::here());
std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveOptions& options = {},
                                          CallSite site = CallSite::here());
std::vector<std::string> gather_bytes(const std::string& bytes, int dst, const CollectiveOptions& options = {},
                                      CallSite site = CallSite::here());
std::string scatter_bytes(std::span<const std::string> bytes, int src, const CollectiveOptions& options = {},
                          CallSite site = CallSite::here());
void send_bytes(const std::string& bytes, int dst, const PointToPointOptions& options = {},
                CallSite site = CallSite::here());
int recv_bytes(std::string& bytes, int src = kAnySource, const PointToPointOptions& options = {},
               CallSite site = CallSite::here());

// For a rank that cannot take part in a collective below: tells the reason to the other ranks, which would otherwise
// wait for this rank.
void refuse_object(const std::exception& why, const CollectiveOptions& options, CallSite site = CallSite::here());

template <typename T>
std::string encode_object(const T& value) {
  ObjectWriter writer;
  writer.put<T>(value);
  return writer.take();
}

// For a collective: if `value` cannot be turned into bytes, the other ranks get an error too.
template <typename T>
std::string encode_object(const T& value, const CollectiveOptions& options) {
  try {
    return encode_object<T>(value);
  } catch (const std::exception& error) {
    refuse_object(error, options);
    throw;
  }
}

// Throws ArgumentError when `bytes` do not hold a T.
template <typename T>
T decode_object(std::string_view bytes) {
  ObjectReader reader(bytes);
  T value = reader.get<T>();
  reader.check_end();
  return value;
}

// Decodes into an existing object: for modules and optimizers, whose parameters and state it replaces.
template <typename T>
void decode_object_into(std::string_view bytes, T& value) {
  ObjectReader reader(bytes);
  reader.get_into(value);
  reader.check_end();
}

// `value` of every other rank becomes the value of `src`. A module or an optimizer stays the same object and takes the
// parameters and the state of the object of `src`, which must have the same structure. A std::shared_ptr to a module
// must not be null.
template <typename T>
void broadcast_object(T& value, int src, const CollectiveOptions& options = {}, CallSite site = CallSite::here()) {
  const CallScope scope(site);
  const bool is_source = get_rank() == src;
  const std::string bytes = broadcast_bytes(is_source ? encode_object(value, options) : std::string(), src, options);
  if (!is_source) decode_object_into(bytes, value);
}

template <typename T>
std::vector<T> decode_objects(std::span<const std::string> list) {
  std::vector<T> values;
  values.reserve(list.size());
  for (const std::string& bytes : list) values.push_back(decode_object<T>(bytes));
  return values;
}

// Returns the values by group rank.
template <typename T>
std::vector<T> all_gather_object(const T& value, const CollectiveOptions& options = {},
                                 CallSite site = CallSite::here()) {
  const CallScope scope(site);
  return decode_objects<T>(all_gather_bytes(encode_object(value, options), options));
}

// Returns the values by group rank on `dst`, nothing elsewhere.
template <typename T>
std::vector<T> gather_object(const T& value, int dst, const CollectiveOptions& options = {},
                             CallSite site = CallSite::here()) {
  const CallScope scope(site);
  return decode_objects<T>(gather_bytes(encode_object(value, options), dst, options));
}

// Group rank r gets values[r] of `src`; elsewhere `values` is empty.
template <typename T>
T scatter_object(const std::vector<T>& values, int src, const CollectiveOptions& options = {},
                 CallSite site = CallSite::here()) {
  const CallScope scope(site);
  std::vector<std::string> list;
  list.reserve(values.size());
  for (const T& value : values) list.push_back(encode_object<T>(value, options));
  return decode_object<T>(scatter_bytes(list, src, options));
}

// To one rank, as two messages of `tag`: the size, then the bytes. Receive it with recv_object of the same type.
// Several values (PyTorch's send_object_list) are one std::tuple or container.
template <typename T>
void send_object(const T& value, int dst, const PointToPointOptions& options = {}, CallSite site = CallSite::here()) {
  const CallScope scope(site);
  send_bytes(encode_object(value), dst, options);
}

// `value` becomes the next object with this tag from `src`, or from the rank that sends first. A module or an optimizer
// stays the same object, as in broadcast_object. Returns the sender, a rank of the world. The timeout holds for each of
// the two messages.
template <typename T>
int recv_object(T& value, int src = kAnySource, const PointToPointOptions& options = {},
                CallSite site = CallSite::here()) {
  const CallScope scope(site);
  std::string bytes;
  const int sender = recv_bytes(bytes, src, options);
  decode_object_into(bytes, value);
  return sender;
}

}  // namespace lockstep
