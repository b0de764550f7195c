#include "lockstep/launch/world.h"

#include <gtest/gtest.h>

#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "launch/world/mpirun.h"
#include "launch/world/slurm.h"

namespace lockstep::launch {
namespace {

using Variables = Environment::Variables;

struct Case {
  std::string name;
  Variables variables;
  World expected;
  WorldArguments arguments = {};
};

void PrintTo(const Case& test, std::ostream* out) {
  *out << test.name;
}

Variables slurm(const std::string& rank, const std::string& local, const std::string& node) {
  return {{"SLURM_JOB_ID", "4711"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", rank},
          {"SLURM_LOCALID", local},
          {"SLURM_NODEID", node},
          {"SLURM_STEP_NUM_TASKS", "5"},
          {"SLURM_NTASKS", "9"},
          {"SLURM_STEP_NUM_NODES", "3"},
          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
          {"SLURM_JOB_NODELIST", "login"},
          {"SLURM_STEP_NODELIST", "n[08-10]"}};
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables kLauncher{
    {"RANK", "3"},       {"WORLD_SIZE", "4"},   {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "2"},
    {"GROUP_RANK", "1"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "1234@1"}};
const Variables kPmi{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};

constexpr int kAnyPort = -1;  // derived from a job id, see WorldPort

std::vector<Case> launcher_cases() {
  return {
      {"Nothing", {}, {0, 1, 0, 1, 0, 1, "", 0, "not distributed", WorldSource::kNotDistributed}},
      {"EmptyVariablesAreNotSet",
       {{"RANK", ""}, {"WORLD_SIZE", ""}},
       {0, 1, 0, 1, 0, 1, "", 0, "not distributed", WorldSource::kNotDistributed}},
      {"MasterAloneIsNoWorld",
       {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "7"}},
       {0, 1, 0, 1, 0, 1, "a", 7, "not distributed", WorldSource::kNotDistributed}},
      {"Launcher", kLauncher, {3, 4, 1, 2, 1, 2, "n0", 29500, "launcher variables", WorldSource::kLauncher}},
      {"LauncherWithUnevenNodes",
       with(kLauncher, {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}, {"GROUP_WORLD_SIZE", "2"}}),
       {3, 4, 0, 1, 1, 2, "n0", 29500, "launcher variables", WorldSource::kLauncher}},
      {"LauncherWithoutMaster",
       {{"RANK", "0"}, {"WORLD_SIZE", "1"}},
       {0, 1, 0, 1, 0, 1, "", 0, "launcher variables", WorldSource::kLauncher}},
      {"Kubernetes",
       {{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "job-0"}, {"MASTER_PORT", "23456"}},
       {2, 3, 0, 1, 2, 3, "job-0", 23456, "launcher variables", WorldSource::kLauncher}},
      {"ByHandOnOneMachine",
       {{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "23456"}},
       {2, 3, 2, 3, 0, 1, "127.0.0.1", 23456, "launcher variables", WorldSource::kLauncher}},
      {"ByHandWithAMasterThatListensEverywhere",
       {{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "0.0.0.0"}, {"MASTER_PORT", "23456"}},
       {2, 3, 2, 3, 0, 1, "0.0.0.0", 23456, "launcher variables", WorldSource::kLauncher}},
      {"LauncherInsideSlurm",
       with(slurm("4", "0", "2"), kLauncher),
       {3, 4, 1, 2, 1, 2, "n0", 29500, "launcher variables", WorldSource::kLauncher}},
      {"LauncherWithPlacesOfPmi",
       with(kPmi, {{"RANK", "2"}, {"WORLD_SIZE", "4"}}),
       {2, 4, 0, 2, 1, 2, "", 0, "launcher variables", WorldSource::kLauncher}},
  };
}

std::vector<Case> slurm_cases() {
  return {
      {"SlurmFirst", slurm("0", "0", "0"), {0, 5, 0, 2, 0, 3, "n08", kAnyPort, "Slurm", WorldSource::kSlurm}},
      {"SlurmMiddle", slurm("3", "1", "1"), {3, 5, 1, 2, 1, 3, "n08", kAnyPort, "Slurm", WorldSource::kSlurm}},
      {"SlurmLastSmallerNode", slurm("4", "0", "2"), {4, 5, 0, 1, 2, 3, "n08", kAnyPort, "Slurm", WorldSource::kSlurm}},
      {"SlurmWithMasterSet",
       with(slurm("4", "0", "2"), {{"MASTER_ADDR", "ib0"}, {"MASTER_PORT", "6000"}, {"WORLD_SIZE", "5"}}),
       {4, 5, 0, 1, 2, 3, "ib0", 6000, "Slurm", WorldSource::kSlurm}},
      {"SlurmOnOneNode",
       with(slurm("2", "2", "0"), {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "5"}}),
       {2, 5, 2, 5, 0, 1, "127.0.0.1", kAnyPort, "Slurm", WorldSource::kSlurm}},
      {"BatchScriptIsNoStep",
       {{"SLURM_JOB_ID", "4711"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}},
       {0, 1, 0, 1, 0, 1, "", 0, "not distributed", WorldSource::kNotDistributed}},
      {"BatchStepIdIsNoStep",
       with(slurm("0", "0", "0"), {{"SLURM_STEP_ID", "4294967291"}}),
       {0, 1, 0, 1, 0, 1, "", 0, "not distributed", WorldSource::kNotDistributed}},
      {"InteractiveStepIsNoStep",
       with(slurm("0", "0", "0"), {{"SLURM_STEP_ID", "4294967290"}}),
       {0, 1, 0, 1, 0, 1, "", 0, "not distributed", WorldSource::kNotDistributed}},
  };
}

std::vector<Case> mpi_cases() {
  return {
      {"OpenMpi", kOpenMpi, {1, 2, 1, 2, 0, 1, "127.0.0.1", kAnyPort, "Open MPI", WorldSource::kOpenMpi}},
      {"OpenMpiOnSeveralNodes",
       with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "6"}, {"OMPI_COMM_WORLD_RANK", "5"}}),
       {5, 6, 1, 2, 2, 3, "", kAnyPort, "Open MPI", WorldSource::kOpenMpi}},
      {"OpenMpi4SaysWhereMpirunIs",
       with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "6"},
                       {"OMPI_MCA_orte_hnp_uri", "1214185472.0;tcp://10.77.0.1,192.168.0.1:43441"}}),
       {1, 6, 1, 2, 0, 3, "10.77.0.1", kAnyPort, "Open MPI", WorldSource::kOpenMpi}},
      {"OpenMpi4OverIpv6",
       with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "6"}, {"OMPI_MCA_orte_hnp_uri", "12.0;tcp6://[fd77::1,fd78::1]:4711"}}),
       {1, 6, 1, 2, 0, 3, "fd77::1", kAnyPort, "Open MPI", WorldSource::kOpenMpi}},
      {"OpenMpi5NamesItsJobsAfterMpirunsMachine",
       with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "6"}, {"PMIX_NAMESPACE", "prterun-gpu-node-7-9394@1"}}),
       {1, 6, 1, 2, 0, 3, "gpu-node-7", kAnyPort, "Open MPI", WorldSource::kOpenMpi}},
      {"HydraWithItsProxysControlPort",
       with(kPmi, {{"HYDRA_CONTROL_PORT", "node7:34589"}}),
       {2, 4, 0, 2, 1, 2, "node7", kAnyPort, "PMI", WorldSource::kPmi}},
      {"MastersAddressByHandWinsOverMpiruns",
       with(kPmi, {{"HYDRA_CONTROL_PORT", "node7:34589"}, {"MASTER_ADDR", "ib7"}}),
       {2, 4, 0, 2, 1, 2, "ib7", kAnyPort, "PMI", WorldSource::kPmi}},
      {"MpirunInsideSlurmCounts",
       with(slurm("0", "0", "0"), kOpenMpi),
       {1, 2, 1, 2, 0, 1, "127.0.0.1", kAnyPort, "Open MPI", WorldSource::kOpenMpi}},
      {"SrunWithPmiIsSlurm",
       with(slurm("4", "0", "2"), {{"PMI_RANK", "4"}, {"PMI_SIZE", "5"}}),
       {4, 5, 0, 1, 2, 3, "n08", kAnyPort, "Slurm", WorldSource::kSlurm}},
      {"Pmi", kPmi, {2, 4, 0, 2, 1, 2, "", kAnyPort, "PMI", WorldSource::kPmi}},
  };
}

std::vector<Case> argument_cases() {
  return {
      {"Arguments", {}, {1, 2, 0, 1, 1, 2, "", 0, "arguments", WorldSource::kArguments}, {.rank = 1, .world_size = 2}},
      {"ArgumentsBeatSlurm",
       slurm("4", "0", "2"),
       {0, 1, 0, 1, 0, 1, "", 0, "arguments", WorldSource::kArguments},
       {.rank = 0, .world_size = 1}},
      {"ArgumentsWithPlacesOfSlurm",
       slurm("3", "1", "1"),
       {3, 5, 1, 2, 1, 3, "", 0, "arguments", WorldSource::kArguments},
       {.rank = 3, .world_size = 5}},
      {"ArgumentsWithPlacesOfOpenMpi",
       with(kOpenMpi, {{"MASTER_ADDR", "n7"}}),
       {1, 2, 1, 2, 0, 1, "n7", 0, "arguments", WorldSource::kArguments},
       {.rank = 1, .world_size = 2}},
      {"ArgumentsWithAnotherRankThanOpenMpi",
       kOpenMpi,
       {0, 2, 0, 1, 0, 2, "", 0, "arguments", WorldSource::kArguments},
       {.rank = 0, .world_size = 2}},
      {"ArgumentsAgreeWithLauncher",
       kLauncher,
       {3, 4, 1, 2, 1, 2, "n0", 29500, "launcher variables", WorldSource::kLauncher},
       {.rank = 3, .world_size = 4}},
      {"AllArguments",
       kPmi,
       {5, 6, 1, 3, 1, 2, "m", 9, "arguments", WorldSource::kArguments},
       {5, 6, 1, 3, 1, 2, "m", 9}},
      {"SingleArgumentsReplace",
       slurm("3", "1", "1"),
       {3, 5, 0, 2, 1, 3, "m", 9, "Slurm", WorldSource::kSlurm},
       {.local_rank = 0, .master_addr = "m", .master_port = 9}},
  };
}

class WorldTable : public testing::TestWithParam<Case> {};

TEST_P(WorldTable, Resolves) {
  const auto world = resolve_world(GetParam().arguments, Environment(GetParam().variables));
  ASSERT_TRUE(world.ok()) << world.status().message();
  const World& expected = GetParam().expected;
  const World& found = world.value();
  EXPECT_EQ(found.rank, expected.rank);
  EXPECT_EQ(found.world_size, expected.world_size);
  EXPECT_EQ(found.local_rank, expected.local_rank);
  EXPECT_EQ(found.local_world_size, expected.local_world_size);
  EXPECT_EQ(found.node_rank, expected.node_rank);
  EXPECT_EQ(found.num_nodes, expected.num_nodes);
  EXPECT_EQ(found.master_addr, expected.master_addr);
  EXPECT_EQ(found.source, expected.source);
  EXPECT_EQ(found.source_kind, expected.source_kind);
  if (expected.master_port == kAnyPort) {
    EXPECT_GE(found.master_port, 10000);
    EXPECT_LT(found.master_port, 30000);
  } else {
    EXPECT_EQ(found.master_port, expected.master_port);
  }
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Launcher, WorldTable, testing::ValuesIn(launcher_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Slurm, WorldTable, testing::ValuesIn(slurm_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Mpi, WorldTable, testing::ValuesIn(mpi_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Arguments, WorldTable, testing::ValuesIn(argument_cases()), name_of);

TEST(World, KnowsWhetherTheLocalRankWasGiven) {
  const auto known = [](const Variables& variables, const WorldArguments& arguments) {
    const auto world = resolve_world(arguments, Environment(variables));
    return world.ok() && world.value().local_rank_known;
  };
  EXPECT_TRUE(known({}, {}));
  EXPECT_TRUE(known(kLauncher, {}));
  EXPECT_TRUE(known(kOpenMpi, {.rank = 1, .world_size = 2}));
  EXPECT_TRUE(known({}, {.rank = 1, .world_size = 2, .local_rank = 0}));
  EXPECT_FALSE(known(kOpenMpi, {.rank = 0, .world_size = 2}));
  EXPECT_FALSE(known({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, {}));
}

struct BadCase {
  std::string name;
  Variables variables;
  std::vector<std::string> mentions;
  WorldArguments arguments = {};
};

void PrintTo(const BadCase& test, std::ostream* out) {
  *out << test.name;
}

std::vector<BadCase> bad_cases() {
  return {
      {"NotANumber", with(kLauncher, {{"RANK", "two"}}), {"RANK", "'two'"}},
      {"TrailingText", with(kLauncher, {{"WORLD_SIZE", "4x"}}), {"WORLD_SIZE", "'4x'"}},
      {"Negative", with(kLauncher, {{"LOCAL_RANK", "-1"}}), {"LOCAL_RANK", "'-1'"}},
      {"TooLarge", with(kLauncher, {{"RANK", "99999999999"}}), {"RANK", "'99999999999'"}},
      {"RankAlone", {{"RANK", "1"}}, {"WORLD_SIZE is not set", "RANK=1"}},
      {"WorldSizeAlone", {{"WORLD_SIZE", "2"}}, {"RANK is not set", "WORLD_SIZE=2"}},
      {"LocalRankAlone", {{"LOCAL_RANK", "1"}}, {"RANK is not set", "LOCAL_RANK=1"}},
      {"LocalRankWithoutSize",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}},
       {"LOCAL_WORLD_SIZE is not set", "LOCAL_RANK=1"}},
      {"LocalSizeWithoutRank",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}},
       {"LOCAL_RANK is not set", "LOCAL_WORLD_SIZE=2"}},
      {"RankOutside", with(kLauncher, {{"RANK", "4"}}), {"RANK=4", "WORLD_SIZE=4"}},
      {"EmptyWorld", with(kLauncher, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE=0"}},
      {"LocalRankOutside", with(kLauncher, {{"LOCAL_RANK", "2"}}), {"local rank=2", "local world size=2"}},
      {"MoreOnTheNodeThanInTheWorld", with(kLauncher, {{"LOCAL_WORLD_SIZE", "5"}}), {"5 processes", "WORLD_SIZE=4"}},
      {"NodeRankOutside", with(kLauncher, {{"GROUP_RANK", "2"}, {"GROUP_WORLD_SIZE", "2"}}), {"node rank=2"}},
      {"BadPort", with(kLauncher, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT", "'70000'"}},
      {"WorldSizeAgainstSlurm",
       with(slurm("0", "0", "0"), {{"WORLD_SIZE", "8"}}),
       {"WORLD_SIZE=8", "SLURM_STEP_NUM_TASKS=5"}},
      {"SlurmRankOutside", slurm("5", "0", "2"), {"SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=5"}},
      {"SlurmBadTasks",
       with(slurm("0", "0", "0"), {{"SLURM_STEP_TASKS_PER_NODE", "2(x"}}),
       {"SLURM_STEP_TASKS_PER_NODE", "'2(x'"}},
      {"SlurmTasksDoNotAddUp",
       with(slurm("0", "0", "0"), {{"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}}),
       {"SLURM_STEP_TASKS_PER_NODE='2(x3)'", "SLURM_STEP_NUM_TASKS=5"}},
      {"SlurmNodeOutside", slurm("0", "0", "3"), {"SLURM_NODEID=3"}},
      {"SlurmBadNodes",
       with(slurm("0", "0", "0"), {{"SLURM_STEP_NODELIST", "n[a-b]"}}),
       {"SLURM_STEP_NODELIST", "'n[a-b]'"}},
      {"SlurmWithoutLocalId", with(slurm("0", "0", "0"), {{"SLURM_LOCALID", ""}}), {"SLURM_LOCALID is not set"}},
      {"OpenMpiHalf", {{"OMPI_COMM_WORLD_RANK", "1"}}, {"OMPI_COMM_WORLD_SIZE is not set"}},
      {"PmiHalf", {{"PMI_SIZE", "2"}}, {"PMI_RANK is not set", "PMI_SIZE=2"}},
      {"PmiOutside", with(kPmi, {{"PMI_RANK", "4"}}), {"PMI_RANK=4", "PMI_SIZE=4"}},
      {"ArgumentRankAlone", {}, {"rank=1", "world_size"}, {.rank = 1}},
      {"ArgumentSizeAlone", {}, {"world_size=2", "rank"}, {.world_size = 2}},
      {"ArgumentAgainstRank", kLauncher, {"rank", "says 1", "RANK=3"}, {.rank = 1}},
      {"ArgumentAgainstWorldSize", kLauncher, {"says 2", "WORLD_SIZE=4"}, {.world_size = 2}},
      {"ArgumentRankOutside", {}, {"argument rank=2", "argument world_size=2"}, {.rank = 2, .world_size = 2}},
      {"ArgumentRankNegative", {}, {"argument rank=-1"}, {.rank = -1, .world_size = 2}},
  };
}

class WorldBadTable : public testing::TestWithParam<BadCase> {};

TEST_P(WorldBadTable, NamesTheVariableAndItsValue) {
  const auto world = resolve_world(GetParam().arguments, Environment(GetParam().variables));
  ASSERT_FALSE(world.ok());
  EXPECT_EQ(world.status().code(), ErrorCode::kInvalidArgument);
  for (const auto& mention : GetParam().mentions) {
    EXPECT_NE(world.status().message().find(mention), std::string::npos)
        << mention << " in: " << world.status().message();
  }
}

INSTANTIATE_TEST_SUITE_P(All, WorldBadTable, testing::ValuesIn(bad_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(WorldPort, FollowsFromTheJob) {
  const auto port = [](Variables variables) {
    return resolve_world({}, Environment(std::move(variables)))->master_port;
  };
  EXPECT_EQ(port(slurm("0", "0", "0")), port(slurm("4", "0", "2")));
  EXPECT_NE(port(slurm("0", "0", "0")), port(with(slurm("0", "0", "0"), {{"SLURM_JOB_ID", "4712"}})));
  EXPECT_NE(port(slurm("0", "0", "0")), port(with(slurm("0", "0", "0"), {{"SLURM_STEP_ID", "1"}})));
}

TEST(WorldPort, JobsOfAnArrayNeverShareOne) {
  std::set<int> ports;
  for (int job = 0; job < 1000; ++job) {
    for (const char* step : {"0", "1"}) {
      const Variables own{{"SLURM_JOB_ID", std::to_string(4711 + job)}, {"SLURM_STEP_ID", step}};
      ports.insert(resolve_world({}, Environment(with(slurm("0", "0", "0"), own)))->master_port);
    }
  }
  EXPECT_EQ(ports.size(), 2000U);
  EXPECT_GE(*ports.begin(), 10000);
  EXPECT_LT(*ports.rbegin(), 30000);
}

TEST(SlurmStep, NamesOfRuns) {
  EXPECT_EQ(slurm_run_name(Environment(slurm("0", "0", "0"))), "slurm-4711.0");
  EXPECT_EQ(slurm_run_name(Environment(with(slurm("0", "0", "0"), {{"SLURM_RESTART_COUNT", "2"}}))),
            "slurm-4711.0-restart2");
}

TEST(SlurmLists, FirstHost) {
  const std::vector<std::pair<std::string, std::optional<std::string>>> table{{"node1", "node1"},
                                                                              {"node1,node2", "node1"},
                                                                              {"node[1-4]", "node1"},
                                                                              {"node[007-012]", "node007"},
                                                                              {"node[3,5-9],other", "node3"},
                                                                              {"r[1-2]n[05,07]", "r1n05"},
                                                                              {"n[2]-ib.site", "n2-ib.site"},
                                                                              {"", std::nullopt},
                                                                              {",a", std::nullopt},
                                                                              {"n[", std::nullopt},
                                                                              {"n[]", std::nullopt},
                                                                              {"n[x]", std::nullopt},
                                                                              {"n[1", std::nullopt},
                                                                              {"n]", std::nullopt},
                                                                              {"n[1x]", std::nullopt}};
  for (const auto& [list, expected] : table) EXPECT_EQ(first_host(list), expected) << list;
}

TEST(SlurmLists, TasksPerNode) {
  using Counts = std::vector<int>;
  const std::vector<std::pair<std::string, std::optional<Counts>>> table{{"4", Counts{4}},
                                                                         {"2(x3),1", Counts{2, 2, 2, 1}},
                                                                         {"1,2,1(x2)", Counts{1, 2, 1, 1}},
                                                                         {"", std::nullopt},
                                                                         {"x", std::nullopt},
                                                                         {"2(x", std::nullopt},
                                                                         {"2(x3", std::nullopt},
                                                                         {"2,", std::nullopt},
                                                                         {"-1", std::nullopt},
                                                                         {"1(x2)y", std::nullopt},
                                                                         {"1(x2000000000)", std::nullopt}};
  for (const auto& [text, expected] : table) EXPECT_EQ(tasks_per_node(text), expected) << text;
}

TEST(Mpirun, TheControlPortIsInTheProxysCommandLine) {
  const auto line = [](const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += word + std::string(1, '\0');
    return text;
  };
  EXPECT_EQ(control_of_proxy(line({"/usr/bin/hydra_pmi_proxy", "--control-port", "node-1:34589", "--rmk", "user"})),
            "node-1:34589");
  for (const auto& wrong : {line({"hydra_pmi_proxy"}), line({"hydra_pmi_proxy", "--control-port"}),
                            line({"hydra_pmi_proxy", "--control-port", "34589"}),
                            line({"hydra_pmi_proxy", "--control-port", ":34589"}), std::string()}) {
    EXPECT_FALSE(control_of_proxy(wrong).has_value()) << wrong;
  }
}

// Two jobs of Hydra at once, on one machine.
TEST(Mpirun, JobsHaveDifferentPorts) {
  const auto port = [](const char* control) {
    return resolve_world({}, Environment(with(kPmi, {{"HYDRA_CONTROL_PORT", control}}))).value().master_port;
  };
  EXPECT_NE(port("node7:34589"), port("node7:34591"));
}

// The job key is a secret of exactly this world's ranks, or empty.
TEST(WorldJobKey, IsThatOfTheEnvironmentOrOfMpirun) {
  const auto key_of = [](const Variables& variables) {
    return resolve_world({}, Environment(variables)).value().job_key;
  };
  const Variables secret =
      with(kOpenMpi, {{"OMPI_MCA_orte_precondition_transports", "650f7d0afedf44d0-8985a3ad15de0891"}});
  EXPECT_EQ(key_of(kOpenMpi), "");
  EXPECT_EQ(key_of(secret), "650f7d0afedf44d0-8985a3ad15de0891");
  EXPECT_EQ(key_of(with(secret, {{"LOCKSTEP_JOB_KEY", "mine"}})), "mine");
  // Launcher variables with mpirun's rank and size, and a world made of several mpiruns.
  EXPECT_NE(key_of(with(secret, {{"RANK", "1"}, {"WORLD_SIZE", "2"}})), "");
  EXPECT_EQ(key_of(with(secret, {{"RANK", "1"}, {"WORLD_SIZE", "4"}})), "");
}

}  // namespace
}  // namespace lockstep::launch
