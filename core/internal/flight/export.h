// Records in the formats of other tools.
#pragma once

#include <span>
#include <string>

#include "flight/record.h"
#include "lockstep/base/status.h"

namespace lockstep::flight {

// The JSON that chrome://tracing and Perfetto read: a process for each rank, a track for each group.
std::string chrome_trace(std::span<const RankRecord> records);

// Writes FOLDER/rank_R for each rank: pickles for `python -m torch.distributed.flight_recorder.fr_trace FOLDER`, with
// the collectives whose numbers every rank's recorder still reaches back to. Messages are left out: that tool expects
// them in groups of two ranks. Files of other names in the folder would confuse the tool: kInvalidArgument.
Status write_pytorch(std::span<const RankRecord> records, const std::string& folder);

}  // namespace lockstep::flight
