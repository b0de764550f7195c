// The manifests of examples/kubernetes and of new projects against what Kubernetes, JobSet and Kubeflow require of
// their fields: names, types, what must be there. As with `kubectl apply --validate=strict`, an unknown field is an
// error. The tables hold the fields that the manifests use, and their neighbours; no cluster and no network is needed.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/new_project_manifest.h"

namespace lockstep::test {
namespace {

using Complaints = std::vector<std::string>;
using Check = std::function<void(const YAML::Node& node, const std::string& where, Complaints& complaints)>;

struct Field {
  Check check;
  bool required = false;
};
using Fields = std::map<std::string, Field>;

// What a plain scalar is for JSON: Kubernetes takes no number where it wants text, and the other way round.
std::string type_of(const YAML::Node& node) {
  if (!node.IsDefined() || node.IsNull()) return "nothing";
  if (node.IsMap()) return "an object";
  if (node.IsSequence()) return "a list";
  if (node.Tag() == "!") return "text";  // quoted
  static const std::regex number(R"([-+]?[0-9][0-9_]*(\.[0-9]*)?([eE][-+]?[0-9]+)?)");
  static const std::regex boolean("true|false|yes|no|on|off|y|n", std::regex::icase);
  if (std::regex_match(node.Scalar(), number)) return "a number";
  if (std::regex_match(node.Scalar(), boolean)) return "true or false";
  return "text";
}

bool expect_type(const YAML::Node& node, const std::string& where, const std::string& type, Complaints& complaints) {
  const std::string found = type_of(node);
  if (found != type) complaints.push_back(fmt::format("{}: expected {}, found {}", where, type, found));
  return found == type;
}

Check text_like(const std::string& pattern) {
  return [pattern](const YAML::Node& node, const std::string& where, Complaints& complaints) {
    if (!expect_type(node, where, "text", complaints)) return;
    if (!std::regex_match(node.Scalar(), std::regex(pattern))) {
      complaints.push_back(fmt::format("{}: '{}' is not of the form {}", where, node.Scalar(), pattern));
    }
  };
}

Check of_type(const std::string& type) {
  return [type](const YAML::Node& node, const std::string& where, Complaints& complaints) {
    expect_type(node, where, type, complaints);
  };
}

const Check kText = of_type("text");
const Check kNumber = of_type("a number");
const Check kBool = of_type("true or false");
const Check kName = text_like("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?");  // a DNS label

// "2", 2, "500m", 4Gi
void check_quantity(const YAML::Node& node, const std::string& where, Complaints& complaints) {
  if (!node.IsScalar() || !std::regex_match(node.Scalar(), std::regex("[0-9]+(\\.[0-9]+)?(m|k|[KMGTPE]i?)?"))) {
    complaints.push_back(where + ": expected a quantity such as 2, 500m or 4Gi");
  }
}

Check map_of(const Check& value) {
  return [value](const YAML::Node& node, const std::string& where, Complaints& complaints) {
    if (!expect_type(node, where, "an object", complaints)) return;
    for (const auto& entry : node) value(entry.second, where + "." + entry.first.Scalar(), complaints);
  };
}

Check list_of(const Check& element) {
  return [element](const YAML::Node& node, const std::string& where, Complaints& complaints) {
    if (!expect_type(node, where, "a list", complaints)) return;
    if (node.size() == 0) complaints.push_back(where + ": the list is empty");
    for (std::size_t i = 0; i < node.size(); ++i) element(node[i], fmt::format("{}[{}]", where, i), complaints);
  };
}

Check object(const Fields& fields) {
  return [fields](const YAML::Node& node, const std::string& where, Complaints& complaints) {
    if (!expect_type(node, where, "an object", complaints)) return;
    for (const auto& entry : node) {
      const std::string name = entry.first.Scalar();
      const auto field = fields.find(name);
      if (field == fields.end()) {
        complaints.push_back(fmt::format("{}.{}: unknown field", where, name));
      } else {
        field->second.check(entry.second, where + "." + name, complaints);
      }
    }
    for (const auto& [name, field] : fields) {
      if (field.required && !node[name].IsDefined()) complaints.push_back(fmt::format("{}.{}: missing", where, name));
    }
  };
}

const Check kVariableFields =
    object({{"name", {text_like("[A-Za-z_][A-Za-z0-9_]*"), true}},
            {"value", {kText}},
            {"valueFrom",
             {object({{"fieldRef",
                       {object({{"apiVersion", {kText}},
                                {"fieldPath",
                                 {text_like(R"(metadata\.(name|namespace|uid|(labels|annotations)\['[a-z0-9./-]+'\]))"
                                            R"(|spec\.nodeName|status\.podIP)"),
                                  true}}})}},
                      {"secretKeyRef",
                       {object({{"name", {kName, true}}, {"key", {kText, true}}, {"optional", {kBool}}})}}})}}});

void check_variable(const YAML::Node& node, const std::string& where, Complaints& complaints) {
  kVariableFields(node, where, complaints);
  if (!node.IsMap()) return;
  if (node["value"].IsDefined() && node["valueFrom"].IsDefined()) complaints.push_back(where + ": value and valueFrom");
  if (node["valueFrom"].IsDefined() && node["valueFrom"].size() != 1) complaints.push_back(where + ": one source only");
}

const Check kSecurity = object(
    {{"runAsNonRoot", {kBool}},
     {"runAsUser", {kNumber}},
     {"runAsGroup", {kNumber}},
     {"privileged", {kBool}},
     {"readOnlyRootFilesystem", {kBool}},
     {"allowPrivilegeEscalation", {kBool}},
     {"capabilities", {object({{"add", {list_of(kText)}}, {"drop", {list_of(kText)}}})}},
     {"seccompProfile",
      {object({{"type", {text_like("RuntimeDefault|Unconfined|Localhost"), true}}, {"localhostProfile", {kText}}})}}});

const Check kContainer =
    object({{"name", {kName, true}},
            {"image", {text_like(R"([a-z0-9.:-]+(/[a-z0-9._-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?)"), true}},
            {"imagePullPolicy", {text_like("Always|IfNotPresent|Never")}},
            {"command", {list_of(kText)}},
            {"args", {list_of(kText)}},
            {"workingDir", {kText}},
            {"env", {list_of(check_variable)}},
            {"resources", {object({{"limits", {map_of(check_quantity)}}, {"requests", {map_of(check_quantity)}}})}},
            {"securityContext", {kSecurity}},
            {"volumeMounts",
             {list_of(object({{"name", {kName, true}}, {"mountPath", {kText, true}}, {"readOnly", {kBool}}}))}}});

const Check kVolume =
    object({{"name", {kName, true}},
            {"emptyDir", {object({{"medium", {kText}}, {"sizeLimit", {check_quantity}}})}},
            {"persistentVolumeClaim", {object({{"claimName", {kName, true}}, {"readOnly", {kBool}}})}},
            {"hostPath", {object({{"path", {kText, true}}, {"type", {kText}}})}}});

const Check kPodFields = object({{"containers", {list_of(kContainer), true}},
                                 {"volumes", {list_of(kVolume)}},
                                 {"subdomain", {kName}},
                                 {"hostname", {kName}},
                                 {"hostNetwork", {kBool}},
                                 {"nodeSelector", {map_of(kText)}},
                                 {"serviceAccountName", {kName}},
                                 {"securityContext", {kSecurity}},
                                 {"restartPolicy", {text_like("Never|OnFailure")}},  // the two that a Job may have
                                 {"terminationGracePeriodSeconds", {kNumber}}});

// "$(NAME)" in a command is replaced if the container has this variable, otherwise it stays as it is.
// `given`: what a controller adds.
void check_references(const YAML::Node& container, const std::set<std::string>& given, const std::string& where,
                      Complaints& complaints) {
  std::set<std::string> names = given;
  for (const auto& variable : container["env"]) names.insert(variable["name"].Scalar());
  static const std::regex reference(R"(\$\(([^)]*)\))");
  for (const auto& word : container["command"]) {
    const std::string text = word.Scalar();
    for (std::sregex_iterator at(text.begin(), text.end(), reference), end; at != end; ++at) {
      if (!names.contains((*at)[1])) complaints.push_back(fmt::format("{}: no variable {}", where, (*at)[1].str()));
    }
  }
}

Check pod(const std::set<std::string>& given) {
  return [given](const YAML::Node& node, const std::string& where, Complaints& complaints) {
    kPodFields(node, where, complaints);
    if (!node.IsMap()) return;
    std::set<std::string> volumes;
    for (const auto& volume : node["volumes"]) volumes.insert(volume["name"].Scalar());
    std::set<std::string> containers;
    for (const auto& container : node["containers"]) {
      const std::string inside = fmt::format("{}.containers[{}]", where, container["name"].Scalar());
      if (!containers.insert(container["name"].Scalar()).second)
        complaints.push_back(inside + ": the name is there twice");
      check_references(container, given, inside, complaints);
      for (const auto& mount : container["volumeMounts"]) {
        const std::string volume = mount["name"].Scalar();
        if (!volumes.contains(volume)) complaints.push_back(fmt::format("{}: no volume {}", inside, volume));
      }
    }
  };
}

const Check kMetadata =
    object({{"name", {kName}}, {"namespace", {kName}}, {"labels", {map_of(kText)}}, {"annotations", {map_of(kText)}}});

Check pod_template(const std::set<std::string>& given) {
  return object({{"metadata", {kMetadata}}, {"spec", {pod(given), true}}});
}

void check_job_spec(const YAML::Node& node, const std::string& where, Complaints& complaints) {
  static const Check fields = object({{"template", {pod_template({"JOB_COMPLETION_INDEX"}), true}},
                                      {"completionMode", {text_like("NonIndexed|Indexed")}},
                                      {"completions", {kNumber}},
                                      {"parallelism", {kNumber}},
                                      {"backoffLimit", {kNumber}},
                                      {"activeDeadlineSeconds", {kNumber}},
                                      {"ttlSecondsAfterFinished", {kNumber}}});
  fields(node, where, complaints);
  if (!node.IsMap()) return;
  const bool indexed = node["completionMode"].IsDefined() && node["completionMode"].Scalar() == "Indexed";
  if (indexed && !node["completions"].IsDefined()) complaints.push_back(where + ": Indexed needs completions");
  const YAML::Node pod_spec = node["template"]["spec"];
  if (!pod_spec["restartPolicy"].IsDefined()) complaints.push_back(where + ": a Job's pods need a restartPolicy");
  // The analyzer loses sight of what std::function frees. NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks)
}

Check document(const std::string& api, const Check& spec) {
  const Check name = object({{"name", {kName, true}}, {"namespace", {kName}}, {"labels", {map_of(kText)}}});
  return object({{"apiVersion", {text_like(api), true}},
                 {"kind", {kText, true}},
                 {"metadata", {name, true}},
                 {"spec", {spec, true}}});
}

Complaints complaints_about(const YAML::Node& manifest) {
  const Check replica =
      object({{"replicas", {kNumber}},
              {"restartPolicy", {text_like("Always|OnFailure|Never|ExitCode")}},
              {"template", {pod_template({"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}), true}}});
  const Check replicated =
      object({{"name", {kName, true}},
              {"replicas", {kNumber}},
              {"template", {object({{"metadata", {kMetadata}}, {"spec", {check_job_spec, true}}}), true}}});
  const Check service = object({{"clusterIP", {kText}},
                                {"publishNotReadyAddresses", {kBool}},
                                {"selector", {map_of(kText)}},
                                {"ports", {list_of(object({{"name", {kName}}, {"port", {kNumber, true}}}))}}});
  const Check claim =
      object({{"accessModes", {list_of(text_like("ReadWriteOnce|ReadOnlyMany|ReadWriteMany|ReadWriteOncePod")), true}},
              {"storageClassName", {kText}},
              {"resources", {object({{"requests", {map_of(check_quantity), true}}}), true}}});
  const std::map<std::string, Check> kinds{
      {"Service", document("v1", service)},
      {"PersistentVolumeClaim", document("v1", claim)},
      {"Job", document("batch/v1", check_job_spec)},
      {"JobSet",
       document("jobset\\.x-k8s\\.io/v1alpha2", object({{"replicatedJobs", {list_of(replicated), true}},
                                                        {"failurePolicy", {object({{"maxRestarts", {kNumber}}})}}}))},
      {"PyTorchJob",
       document("kubeflow\\.org/v1",
                object({{"pytorchReplicaSpecs", {object({{"Master", {replica}}, {"Worker", {replica}}}), true}}}))}};
  Complaints complaints;
  const auto kind = kinds.find(manifest["kind"].IsDefined() ? manifest["kind"].Scalar() : "");
  if (kind == kinds.end()) return {"the kind is unknown"};
  kind->second(manifest, kind->first, complaints);
  return complaints;
  // The analyzer loses sight of what std::function frees. NOLINTNEXTLINE(clang-analyzer-cplusplus.NewDeleteLeaks)
}

std::vector<YAML::Node> manifests(const std::string& name) {
  return YAML::LoadAllFromFile(std::string(LOCKSTEP_KUBERNETES_EXAMPLES) + "/" + name);
}

TEST(KubernetesSchema, TheManifestsAreWhatKubernetesTakes) {
  for (const auto& [name, count] : {std::pair("job.yaml", 2), {"jobset.yaml", 1}, {"pytorchjob.yaml", 1}}) {
    const auto parts = manifests(name);
    EXPECT_EQ(parts.size(), static_cast<std::size_t>(count)) << name;
    for (const YAML::Node& part : parts) {
      for (const std::string& complaint : complaints_about(part)) ADD_FAILURE() << name << ": " << complaint;
    }
  }
}

TEST(KubernetesSchema, SoIsTheManifestOfANewProject) {
  const auto parts = manifest_of_a_new_project();
  EXPECT_EQ(parts.size(), 3U);
  for (const YAML::Node& part : parts) {
    for (const std::string& complaint : complaints_about(part)) ADD_FAILURE() << complaint;
  }
}

// Mistakes that a person would make in the Job, each by one change of its text.
TEST(KubernetesSchema, MistakesAreFound) {
  const std::tuple<const char*, const char*, const char*> mistakes[] = {
      {"completions: 2", "completion: 2", "Job.spec.completion: unknown field"},
      {"completions: 2", "completions: \"2\"", "expected a number, found text"},
      {"value: \"2\"", "value: 2", "expected text, found a number"},
      {"image: registry.example/train:1", "", "image: missing"},
      {"name: train\n          image", "name: Train_1\n          image", "is not of the form"},
      {"restartPolicy: Never", "restartPolicy: Always", "is not of the form Never|OnFailure"},
      {"restartPolicy: Never", "", "need a restartPolicy"},
      {"- name: scratch\n              mountPath", "- name: other\n              mountPath", "no volume other"},
      {"\"50\", ./train", "\"50\", $(TRAIN)", "no variable TRAIN"},
      {"--grace, \"50\"", "--grace, 50", "expected text, found a number"},
      {"memory: 4Gi", "memory: 4GB", "expected a quantity"},
      {"fieldPath: metadata.labels", "fieldPath: metadata.label", "is not of the form"},
      {"apiVersion: batch/v1\n", "apiVersion: v1\n", "is not of the form batch/v1"}};
  std::ifstream file(std::string(LOCKSTEP_KUBERNETES_EXAMPLES) + "/job.yaml");
  std::string whole((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  whole.erase(0, whole.find("---") + 4);
  for (const auto& [before, after, expected] : mistakes) {
    std::string changed = whole;
    const std::size_t at = changed.find(before);
    ASSERT_NE(at, std::string::npos) << before;
    changed.replace(at, std::string(before).size(), after);
    const Complaints found = complaints_about(YAML::Load(changed));
    EXPECT_TRUE(
        std::any_of(found.begin(), found.end(),
                    [&, words = expected](const std::string& one) { return one.find(words) != std::string::npos; }))
        << before << " -> " << after << ": " << fmt::format("{}", fmt::join(found, "; "));
  }
}

}  // namespace
}  // namespace lockstep::test
