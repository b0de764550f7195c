#include "launch/job/worker_environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>

namespace lockstep::launch {

Variables worker_variables(const JobSpec& job, int local_rank) {
  const std::string rank = std::to_string(job.first_rank + local_rank);
  const std::string world_size = std::to_string(job.world_size);
  Variables variables{
      {"RANK", rank},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", std::to_string(job.local_world_size)},
      {"GROUP_RANK", std::to_string(job.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(job.num_nodes)},
      {"ROLE_RANK", std::to_string(job.first_role_rank + local_rank)},
      {"ROLE_NAME", job.role},
      {"ROLE_WORLD_SIZE", std::to_string(job.role_world_size > 0 ? job.role_world_size : job.world_size)},
      {"MASTER_ADDR", job.master_addr},
      {"MASTER_PORT", std::to_string(job.master_port)},
      {"TORCHELASTIC_RUN_ID", job.run_id},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(job.restarts)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(job.max_restarts)},
      {"LOCKSTEP_RESTART_COUNT", std::to_string(job.restart_count)},
      {"LOCKSTEP_JOB_KEY", job.job_key},
  };
  if (!job.store.empty()) variables.emplace_back("LOCKSTEP_STORE", job.store);
  if (job.max_newcomers > 0) {
    variables.emplace_back("LOCKSTEP_MAX_NEWCOMERS", std::to_string(job.max_newcomers));
  }
  if (job.omp_threads > 0) variables.emplace_back("OMP_NUM_THREADS", std::to_string(job.omp_threads));
  return variables;
}

// The dead worker may still have the master port.
Variables newcomer_variables(const JobSpec& job, int local_rank) {
  Variables variables{{"LOCKSTEP_NEWCOMER", std::to_string(job.first_rank + local_rank)}, {"MASTER_PORT", "0"}};
  for (const char* number : {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"}) variables.emplace_back(number, "0");
  for (const char* size : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"}) {
    variables.emplace_back(size, "1");
  }
  return variables;
}

std::vector<std::string> merge_environment(std::span<const std::string> inherited, const Variables& variables) {
  std::vector<std::string> merged;
  merged.reserve(inherited.size() + variables.size());
  for (const std::string& entry : inherited) {
    const std::string_view name = std::string_view(entry).substr(0, entry.find('='));
    const bool replaced =
        std::any_of(variables.begin(), variables.end(), [&](const auto& variable) { return variable.first == name; });
    if (!replaced) merged.push_back(entry);
  }
  for (const auto& [name, value] : variables) merged.push_back(fmt::format("{}={}", name, value));
  return merged;
}

std::vector<std::string> changed_variables(std::span<const std::string> before, std::span<const std::string> after) {
  std::set<std::string_view> names;
  std::vector<std::string> changes;
  for (const std::string& entry : after) {
    names.insert(std::string_view(entry).substr(0, entry.find('=')));
    if (std::find(before.begin(), before.end(), entry) == before.end()) changes.push_back(entry);
  }
  for (const std::string& entry : before) {
    const std::string name = entry.substr(0, entry.find('='));
    if (!names.contains(name)) changes.push_back(name);
  }
  return changes;
}

void keep_freed_memory(std::vector<std::string>& environment) {
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}) {
    if (find_variable(environment, name) == nullptr) environment.push_back(std::string(name) + "=536870912");
  }
}

void use_huge_pages(std::vector<std::string>& environment) {
  constexpr std::string_view kTunables = "GLIBC_TUNABLES", kHugePages = "glibc.malloc.hugetlb";
  const char* const found = find_variable(environment, kTunables);
  const std::string before = found == nullptr ? "" : found;
  if (before.find(kHugePages) != std::string::npos) return;
  std::erase_if(environment,
                [&](const std::string& entry) { return entry.starts_with(fmt::format("{}=", kTunables)); });
  environment.push_back(fmt::format("{}={}{}{}=1", kTunables, before, before.empty() ? "" : ":", kHugePages));
}

void use_dumb_terminal(std::vector<std::string>& environment) {
  for (const char* name : {"TERM", "COLORTERM"}) {
    std::erase_if(environment, [&](const std::string& entry) { return entry.starts_with(fmt::format("{}=", name)); });
  }
  environment.emplace_back("TERM=dumb");
  if (find_variable(environment, "PAGER") == nullptr) environment.emplace_back("PAGER=cat");
  if (find_variable(environment, "GIT_PAGER") == nullptr) environment.emplace_back("GIT_PAGER=cat");
}

std::vector<std::string> current_environment() {
  std::vector<std::string> entries;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

std::vector<std::string> environment_for_workers() {
  std::vector<std::string> entries = current_environment();
  std::erase_if(entries, [](const std::string& entry) {
    return entry.starts_with("LOCKSTEP_NEWCOMER=") || entry.starts_with("LOCKSTEP_MAX_NEWCOMERS=");
  });
  return entries;
}

int threads_per_worker(int cores, int workers) {
  return std::max(1, cores / std::max(1, workers));
}

const char* find_variable(std::span<const std::string> entries, std::string_view name) {
  for (const std::string& entry : entries) {
    if (entry.size() > name.size() && entry[name.size()] == '=' && std::string_view(entry).starts_with(name)) {
      return entry.c_str() + name.size() + 1;
    }
  }
  return nullptr;
}

}  // namespace lockstep::launch
