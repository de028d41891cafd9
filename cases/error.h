// Errors of assay. Bad input throws InputError (exit status 2), a machine that cannot run something throws
// EnvironmentError (exit status 3); a broken invariant aborts with file, line and expression.
#pragma once

#include <stdexcept>
#include <string>

namespace assay {

/// Bad usage or bad input. The message is one line: "<where>: <what was found>; <what is allowed>".
class InputError : public std::runtime_error {
 public:
  explicit InputError(const std::string& message) : std::runtime_error(message) {}
  /// `where` names the file, tensor or field.
  InputError(const std::string& where, const std::string& found, const std::string& allowed)
      : std::runtime_error(where + ": " + found + (allowed.empty() ? "" : "; " + allowed)) {}
};

/// The machine lacks what the request needs.
class EnvironmentError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] void broken_invariant(const char* file, int line, const char* expression);

}  // namespace assay

/// Aborts with file, line and expression when an invariant of assay itself is broken (never for bad input).
#define ASSAY_CHECK(expression) \
  ((expression) ? static_cast<void>(0) : ::assay::broken_invariant(__FILE__, __LINE__, #expression))
