// Results of judging: verdict words, one check per judged tensor, one report per run. Schema of the JSON:
// harness/result.schema.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace assay::harness {

/// The closed set of verdict words (design section 4).
enum class Verdict {
  kPass,
  kFail,
  kMistrusted,  ///< the check could not have failed: all zeros, nothing compared, a selection that selects everything
  kSkipped,     ///< with a reason
  kError,
};
std::string_view word(Verdict verdict);

/// One element of a tensor that a message talks about.
struct Element {
  std::vector<std::int64_t> index;
  double observed = 0.0;
  double expected = 0.0;  ///< the truth, rounded to double
  double limit = 0.0;
  std::optional<std::int64_t> ulps = {};  ///< steps of the recorded dtype from the truth as stored; if both are finite
};

/// What was compared and how it came out. `share` = error / limit at the element that used most of its limit.
struct Check {
  std::string stage;     ///< "layers.6.dsa.out", or "<case>: <output>" of a vector file
  std::string recorded;  ///< name of the judged tensor in its file
  std::string scope;     ///< "local" (given its own recorded inputs), "end to end", "vector"
  std::int64_t elements = 0;
  double error = 0.0;           ///< |observed - truth| at the worst element
  double limit = 0.0;           ///< its limit: distance of the farther legal stored value from the truth
  double share = 0.0;           ///< error / limit there
  double relative_error = 0.0;  ///< norm of the difference over norm of the truth
  double certified =
      0.0;  ///< largest radius of the truth relative to the tensor's largest magnitude; 0 if not certified
  std::int64_t over_limit = 0;  ///< elements beyond their limit
  std::int64_t fixed = 0;       ///< elements for which the limits leave exactly one stored value
  double spread = 0.0;          ///< share used of a limit by ensemble for the whole tensor; 0 if not judged by one
  // Decisions (selections, routes), compared as sets per row:
  bool is_set = false;
  std::int64_t rows_equal = 0, rows_tied = 0, rows_by_margin = 0, rows_unexplained = 0;
  Verdict verdict = Verdict::kError;
  std::string reason;  ///< one line: why not PASS, or what is to be known about a PASS (ties)
  std::optional<Element> worst;
  double seconds = 0.0;
};

struct Report {
  std::string title;    ///< "kda_dsa"
  std::string command;  ///< the line that reproduces the run
  std::string scalar;   ///< double | real | ball
  int bits = 0;
  std::vector<Check> checks;
  std::string certainty;  ///< how sure the reference is, one clause
  double seconds = 0.0;
  std::int64_t peak_memory_bytes = 0;

  std::int64_t count(Verdict verdict) const;
  /// 0 if no verdict is FAIL, MISTRUSTED or ERROR and something was judged; else 1.
  int exit_status() const;
  /// "PASS: 73 checks of kda_dsa, 123456 elements, ... reference certified to 1e-30".
  std::string last_line() const;
};

}  // namespace assay::harness
