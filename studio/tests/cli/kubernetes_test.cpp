// The manifests of examples/kubernetes and of new projects: what Kubernetes would start in each pod, started here in
// containers with networks and names of their own.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/nodes.h"
#include "support/containers.h"
#include "support/machines.h"
#include "support/process.h"
#include "support/scratch_folder.h"

namespace lockstep::test {
namespace {

using Variables = std::map<std::string, std::string>;

const std::string kUid = "0f2c9b6e-4a4c-4a8e-9d1a-6a1b9e1f7c55";  // of the Job

std::vector<YAML::Node> manifest_of_a_new_project() {
  const ScratchFolder folder;
  const Finished made = run_program({LOCKSTEP_PROGRAM, "new", folder.path("My_Flowers")});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  return YAML::LoadAllFromFile(folder.path("My_Flowers/scripts/kubernetes.yaml"));
}

struct Pod {
  std::string name;  // by which the others find it
  Words command;
  Variables environment;
};

// Kubernetes's own rule: "$(NAME)" in a command is the container's variable, if it has this one.
std::string expanded(std::string word, const Variables& variables) {
  for (const auto& [name, value] : variables) {
    const std::string reference = "$(" + name + ")";
    for (auto at = word.find(reference); at != std::string::npos; at = word.find(reference, at + value.size()))
      word.replace(at, reference.size(), value);
  }
  return word;
}

std::string value_of(const YAML::Node& variable, int index) {
  if (variable["value"]) return variable["value"].as<std::string>();
  const YAML::Node from = variable["valueFrom"];
  if (from["secretKeyRef"]) return "the secret of the namespace";
  const auto path = from["fieldRef"]["fieldPath"].as<std::string>();
  if (path == "metadata.annotations['batch.kubernetes.io/job-completion-index']") return std::to_string(index);
  if (path == "metadata.labels['batch.kubernetes.io/controller-uid']") return kUid;
  ADD_FAILURE() << "the test does not know the field " << path;
  return {};
}

// `given`: what a controller adds to the variables of the manifest.
Pod pod_of(const std::string& name, const YAML::Node& container, int index, const Variables& given) {
  Pod pod{name, {}, given};
  for (const auto& variable : container["env"])
    pod.environment[variable["name"].as<std::string>()] = value_of(variable, index);
  for (const auto& word : container["command"])
    pod.command.push_back(expanded(word.as<std::string>(), pod.environment));
  return pod;
}

std::vector<YAML::Node> manifest(const std::string& name) {
  return YAML::LoadAllFromFile(std::string(LOCKSTEP_KUBERNETES_EXAMPLES) + "/" + name);
}

// An indexed Job: pods have the job's name, their index and the subdomain.
std::vector<Pod> pods_of_job(const std::string& name, const std::string& subdomain, const YAML::Node& spec) {
  EXPECT_EQ(spec["completionMode"].as<std::string>(), "Indexed");
  EXPECT_EQ(spec["completions"].as<int>(), spec["parallelism"].as<int>()) << "all pods must run at the same time";
  std::vector<Pod> pods;
  for (int index = 0; index < spec["completions"].as<int>(); ++index) {
    pods.push_back(pod_of(fmt::format("{}-{}.{}", name, index, subdomain), spec["template"]["spec"]["containers"][0],
                          index, {{"JOB_COMPLETION_INDEX", std::to_string(index)}}));
  }
  return pods;
}

// The last two parts of the manifest are the Service and the Job.
std::vector<Pod> pods_of_indexed_job(const std::vector<YAML::Node>& parts) {
  const YAML::Node& service = parts.at(parts.size() - 2);
  const YAML::Node& job = parts.back();
  const auto name = job["metadata"]["name"].as<std::string>();
  const YAML::Node pod = job["spec"]["template"]["spec"];
  EXPECT_EQ(service["spec"]["clusterIP"].as<std::string>(), "None");
  EXPECT_EQ(service["spec"]["selector"]["batch.kubernetes.io/job-name"].as<std::string>(), name);
  EXPECT_EQ(pod["subdomain"].as<std::string>(), service["metadata"]["name"].as<std::string>());
  return pods_of_job(name, pod["subdomain"].as<std::string>(), job["spec"]);
}

std::vector<Pod> pods_of_jobset() {
  const YAML::Node set = manifest("jobset.yaml").at(0);
  const auto name = set["metadata"]["name"].as<std::string>();
  const YAML::Node job = set["spec"]["replicatedJobs"][0];
  return pods_of_job(fmt::format("{}-{}-0", name, job["name"].as<std::string>()), name, job["template"]["spec"]);
}

// The variables of Kubeflow's training operator.
std::vector<Pod> pods_of_pytorch_job() {
  const YAML::Node job = manifest("pytorchjob.yaml").at(0);
  const auto name = job["metadata"]["name"].as<std::string>();
  const YAML::Node replicas = job["spec"]["pytorchReplicaSpecs"];
  const int workers = replicas["Worker"]["replicas"].as<int>();
  std::vector<Pod> pods;
  for (int rank = 0; rank <= workers; ++rank) {
    const YAML::Node container = replicas[rank == 0 ? "Master" : "Worker"]["template"]["spec"]["containers"][0];
    EXPECT_EQ(container["name"].as<std::string>(), "pytorch");
    const Variables given{{"RANK", std::to_string(rank)},
                          {"WORLD_SIZE", std::to_string(1 + workers)},
                          {"MASTER_ADDR", name + "-master-0"},
                          {"MASTER_PORT", "23456"},
                          {"PYTHONUNBUFFERED", "0"}};
    pods.push_back(
        pod_of(rank == 0 ? name + "-master-0" : fmt::format("{}-worker-{}", name, rank - 1), container, rank, given));
  }
  return pods;
}

// The image's programs are those of this build.
Words with_built_programs(const Words& command, const Words& train) {
  Words words{LOCKSTEP_PROGRAM};
  EXPECT_EQ(command.front(), "lockstep");
  for (std::size_t i = 1; i < command.size(); ++i) {
    if (command[i] == "./train") {
      words = words + train;
    } else if (command[i] == "./build/train") {  // of a new project, with its options
      return words + train;
    } else {
      words.push_back(command[i]);
    }
  }
  return words;
}

void run_pods(const std::vector<Pod>& pods) {
  const ScratchFolder folder;
  const Machines machines(static_cast<int>(pods.size()));
  const std::string hosts = folder.path("hosts");
  std::ofstream names(hosts);
  names << "127.0.0.1 localhost\n";
  for (std::size_t pod = 0; pod < pods.size(); ++pod)
    names << Machines::ipv4(static_cast<int>(pod)) << " " << pods[pod].name << "\n";
  names.close();
  const Container container{
      .processes = true, .ipc_and_name = true, .shm = "64m", .hosts = hosts, .filter = LOCKSTEP_FORBID_CALLS};
  const Words train{LOCKSTEP_STEPPING_WORKER, folder.path("steps"), "5"};
  std::vector<std::unique_ptr<Process>> running;
  for (std::size_t pod = pods.size(); pod-- > 0;) {  // the first one comes last
    Process::Settings settings;
    for (const auto& [name, value] : pods[pod].environment) settings.environment.push_back(name + "=" + value);
    running.push_back(std::make_unique<Process>(
        machines.on(static_cast<int>(pod), inside(container, with_built_programs(pods[pod].command, train))),
        settings));
  }
  std::string out;
  for (const auto& one : running) {
    const Finished end = one->finish(std::chrono::seconds(60));
    EXPECT_EQ(end.exit_code, 0) << end.err;
    out += end.out;
  }
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_TRUE(contains(out, fmt::format("rank {} of 4 begins at step 0", rank))) << out;
  EXPECT_EQ(read_file(folder.path("steps")), "5\n");
}

TEST(KubernetesMulti, APodOfAnIndexedJobIsANode) {
  run_pods(pods_of_indexed_job(manifest("job.yaml")));
}

TEST(KubernetesMulti, APodOfANewProjectIsANode) {
  run_pods(pods_of_indexed_job(manifest_of_a_new_project()));
}

TEST(KubernetesMulti, APodOfAJobSetIsANode) {
  run_pods(pods_of_jobset());
}

TEST(KubernetesMulti, APodOfAPyTorchJobIsANode) {
  run_pods(pods_of_pytorch_job());
}

// As the restricted profile of Kubernetes's Pod Security Standards asks.
TEST(Kubernetes, TheJobNeedsNoPrivileges) {
  const YAML::Node pod = manifest("job.yaml").at(1)["spec"]["template"]["spec"];
  const YAML::Node rights = pod["containers"][0]["securityContext"];
  EXPECT_TRUE(rights["runAsNonRoot"].as<bool>());
  EXPECT_FALSE(rights["allowPrivilegeEscalation"].as<bool>());
  EXPECT_EQ(rights["capabilities"]["drop"][0].as<std::string>(), "ALL");
  EXPECT_FALSE(rights["capabilities"]["add"].IsDefined());
  for (const char* shared : {"hostNetwork", "hostPID", "hostIPC"}) EXPECT_FALSE(pod[shared].IsDefined()) << shared;
}

}  // namespace
}  // namespace lockstep::test
