#include "harness/table.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace assay::harness {
namespace {

enum Column { kStage, kElements, kError, kLimit, kShare, kRelative, kVerdict, kColumns };
using Row = std::array<std::string, kColumns>;

/// Code points of UTF-8 text: bytes that do not continue another.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string number(double value) { return fmt::format("{:.2e}", value); }

Row row_of(const Check& check) {
  Row row;
  row[kStage] = check.scope.empty() ? check.stage : fmt::format("{} ({})", check.stage, check.scope);
  row[kElements] = fmt::format("{}", check.elements);
  row[kVerdict] = word(check.verdict);
  if (check.verdict == Verdict::kSkipped || (check.verdict == Verdict::kError && check.elements == 0)) {
    for (const Column column : {kError, kLimit, kShare, kRelative}) row[column] = "-";
  } else if (check.is_set) {
    row[kError] = fmt::format("{} equal", check.rows_equal);
    row[kLimit] = fmt::format("{} tied", check.rows_tied);
    row[kShare] = fmt::format("{} explained", check.rows_by_margin);
    row[kRelative] = fmt::format("{} unexplained", check.rows_unexplained);
  } else {
    row[kError] = number(check.error);
    row[kLimit] = number(check.limit);
    row[kShare] = fmt::format("{:.1f}%", 100.0 * check.share);
    row[kRelative] = number(check.relative_error);
  }
  return row;
}

const char* colour_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "\033[32m";
    case Verdict::kSkipped:
      return "\033[2m";
    case Verdict::kMistrusted:
      return "\033[33m";
    case Verdict::kFail:
    case Verdict::kError:
      break;
  }
  return "\033[31m";
}

std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string blanks(width - width_of(text), ' ');
  return left ? text + blanks : blanks + text;
}

/// The reason, and how much of a passed check left an implementation no freedom.
std::string note_of(const Check& check) {
  if (check.verdict != Verdict::kPass || check.fixed == 0) return check.reason;
  const std::string fixed = check.fixed == check.elements
                                ? fmt::format("all {} elements are fixed bit for bit", check.elements)
                                : fmt::format("{} of {} elements are fixed bit for bit", check.fixed, check.elements);
  return check.reason.empty() ? fixed : check.reason + "; " + fixed;
}

std::string without_trailing_blanks(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

std::string explain(const Check& check) {
  std::string text;
  if (check.verdict != Verdict::kPass) text = fmt::format("{}", word(check.verdict));
  const auto add = [&](const std::string& part) {
    if (!text.empty()) text += "; ";
    text += part;
  };
  if (const std::string note = note_of(check); !note.empty()) add(note);
  if (check.verdict != Verdict::kFail) return text;
  if (check.is_set) add(fmt::format("{} rows unexplained", check.rows_unexplained));
  if (check.over_limit > 0) add(fmt::format("{} of {} elements beyond the limit", check.over_limit, check.elements));
  if (check.worst) {
    add(fmt::format("worst at [{}]: observed {} ({:a}), expected {} ({:a}), limit {:.3e}",
                    fmt::join(check.worst->index, ", "), check.worst->observed, check.worst->observed,
                    check.worst->expected, check.worst->expected, check.worst->limit));
    if (check.worst->ulps) text += fmt::format(" ({} ULP)", *check.worst->ulps);
  }
  return text;
}

std::string to_table(const Report& report, bool colour) {
  std::vector<Row> rows{{"stage", "elements", "error", "limit", "of limit", "relative", "verdict"}};
  for (const Check& check : report.checks) rows.push_back(row_of(check));
  std::array<std::size_t, kColumns> widths{};
  for (const Row& row : rows) {
    for (std::size_t column = 0; column < kColumns; ++column) {
      widths[column] = std::max(widths[column], width_of(row[column]));
    }
  }
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Check* check = i == 0 ? nullptr : &report.checks[i - 1];
    std::string line;
    for (std::size_t column = 0; column < kVerdict; ++column) {
      line += padded(rows[i][column], widths[column], column == kStage) + "  ";
    }
    const std::string verdict = padded(rows[i][kVerdict], widths[kVerdict], true);
    line += colour && check != nullptr ? colour_of(check->verdict) + verdict + "\033[0m" : verdict;
    if (check != nullptr) line += "  " + note_of(*check);
    text += without_trailing_blanks(std::move(line)) + "\n";
  }
  return text;
}

bool wants_colour(int descriptor) {
  const char* no_colour = std::getenv("NO_COLOR");
  return ::isatty(descriptor) != 0 && (no_colour == nullptr || *no_colour == '\0');
}

}  // namespace assay::harness
