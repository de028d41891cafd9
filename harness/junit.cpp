#include "harness/junit.h"

#include <array>
#include <cstdint>

#include <fmt/format.h>

#include "harness/table.h"

namespace assay::harness {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Bytes of the well-formed UTF-8 character at the start of `text` that XML may hold; 0 if there is none.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  std::uint32_t point = first & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
    point = point << 6U | (byte(i) & 0x3FU);
  }
  constexpr std::array<std::uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = point >= 0xD800 && point <= 0xDFFF;
  const bool not_xml = point == 0xFFFE || point == 0xFFFF;
  return point < kLeast[length] || point > 0x10FFFF || surrogate || not_xml ? 0 : length;
}

std::string body_of(const Check& check) {
  const std::string message = xml_escaped(explain(check));
  switch (check.verdict) {
    case Verdict::kPass:
      return check.reason.empty() ? "" : fmt::format("      <system-out>{}</system-out>\n", message);
    case Verdict::kSkipped:
      return fmt::format("      <skipped message=\"{}\"/>\n", message);
    case Verdict::kError:
      return fmt::format("      <error type=\"{}\" message=\"{}\"/>\n", word(check.verdict), message);
    case Verdict::kFail:
    case Verdict::kMistrusted:
      break;
  }
  return fmt::format("      <failure type=\"{}\" message=\"{}\"/>\n", word(check.verdict), message);
}

}  // namespace

std::string xml_escaped(const std::string& text) {
  std::string escaped;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = character_length(std::string_view(text).substr(i));
    const char c = text[i];
    if (length == 0) {
      escaped += kReplacement;
      ++i;
      continue;
    }
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else if (c == '\'') {
      escaped += "&apos;";
    } else if (c == '\n' || c == '\r' || c == '\t') {
      escaped += fmt::format("&#{};", static_cast<int>(c));
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      escaped += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else {
      escaped.append(text, i, length);
    }
    i += length;
  }
  return escaped;
}

std::string to_junit(const Report& report) {
  const std::string counts =
      fmt::format("tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.3f}\"", report.checks.size(),
                  report.count(Verdict::kFail) + report.count(Verdict::kMistrusted), report.count(Verdict::kError),
                  report.count(Verdict::kSkipped), report.seconds);
  const std::string title = xml_escaped(report.title);
  std::string xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  xml += fmt::format("<testsuites {}>\n  <testsuite name=\"{}\" {}>\n", counts, title, counts);
  xml += fmt::format("    <properties>\n      <property name=\"command\" value=\"{}\"/>\n    </properties>\n",
                     xml_escaped(report.command));
  for (const Check& check : report.checks) {
    const std::string name = check.scope.empty() ? check.stage : fmt::format("{} ({})", check.stage, check.scope);
    const std::string body = body_of(check);
    xml += fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\"", title, xml_escaped(name),
                       check.seconds);
    xml += body.empty() ? "/>\n" : ">\n" + body + "    </testcase>\n";
  }
  return xml + "  </testsuite>\n</testsuites>\n";
}

}  // namespace assay::harness
