#include "harness/result.h"

#include <algorithm>

#include <fmt/format.h>

#include "cases/error.h"

namespace assay::harness {
namespace {

/// The check that used most of its limit; nullptr if no check left an implementation any freedom.
const Check* most_used(const std::vector<Check>& checks) {
  const Check* most = nullptr;
  for (const Check& check : checks) {
    if (check.is_set || check.verdict == Verdict::kSkipped) continue;
    if (check.elements > 0 && check.fixed == check.elements) continue;
    if (most == nullptr || check.share > most->share) most = &check;
  }
  return most;
}

std::string plural(std::int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

std::string_view word(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "PASS";
    case Verdict::kFail:
      return "FAIL";
    case Verdict::kMistrusted:
      return "MISTRUSTED";
    case Verdict::kSkipped:
      return "SKIPPED";
    case Verdict::kError:
      return "ERROR";
  }
  ASSAY_CHECK(false);
  return "";
}

std::int64_t Report::count(Verdict verdict) const {
  return std::count_if(checks.begin(), checks.end(), [&](const Check& check) { return check.verdict == verdict; });
}

int Report::exit_status() const {
  const bool bad = count(Verdict::kFail) + count(Verdict::kMistrusted) + count(Verdict::kError) > 0;
  return !bad && count(Verdict::kPass) > 0 ? 0 : 1;
}

std::string Report::last_line() const {
  const auto all = static_cast<std::int64_t>(checks.size());
  if (exit_status() == 0) {
    std::int64_t elements = 0, fixed = 0;
    for (const Check& check : checks) {
      if (check.verdict != Verdict::kPass) continue;
      elements += check.elements;
      fixed += check.fixed;
    }
    std::string line =
        fmt::format("PASS: {} of {}, {}", plural(count(Verdict::kPass), "check"), title, plural(elements, "element"));
    if (fixed > 0) line += fmt::format(" ({} fixed bit for bit)", fixed);
    if (count(Verdict::kSkipped) > 0) line += fmt::format(", {} skipped", count(Verdict::kSkipped));
    if (const Check* most = most_used(checks)) {
      line += fmt::format(", at most {:.3g}% of a limit used ({})", 100.0 * most->share, most->stage);
    }
    if (!certainty.empty()) line += ", " + certainty;
    return line;
  }
  for (const Verdict verdict : {Verdict::kFail, Verdict::kError, Verdict::kMistrusted}) {
    if (count(verdict) == 0) continue;
    std::string counts;
    for (const Verdict other : {Verdict::kFail, Verdict::kError, Verdict::kMistrusted}) {
      if (count(other) > 0) counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count(other), word(other));
    }
    const auto first =
        std::find_if(checks.begin(), checks.end(), [&](const Check& check) { return check.verdict == verdict; });
    return fmt::format("{}: {} among {} of {}, first: {}", word(verdict), counts, plural(all, "check"), title,
                       first->stage);
  }
  return fmt::format("MISTRUSTED: nothing was judged in {} ({}, all skipped)", title, plural(all, "check"));
}

}  // namespace assay::harness
