#include "reference/evaluate.h"

#include "reference/decide.h"
#include "reference/ops/attention.h"
#include "reference/ops/ffn.h"
#include "reference/ops/fp8.h"
#include "reference/ops/head.h"
#include "reference/ops/indexer.h"
#include "reference/ops/kda.h"
#include "reference/ops/layout.h"
#include "reference/ops/linear.h"
#include "reference/ops/mhc.h"
#include "reference/ops/norm.h"
#include "reference/ops/router.h"
#include "reference/ops/vision.h"

namespace assay::reference {
namespace {

template <class T>
OpTable<T> all_ops() {
  OpTable<T> table;
  add_linear_ops(table);
  add_fp8_ops(table);
  add_norm_ops(table);
  add_mhc_ops(table);
  add_kda_ops(table);
  add_indexer_ops(table);
  add_attention_ops(table);
  add_router_ops(table);
  add_ffn_ops(table);
  add_head_ops(table);
  add_vision_ops(table);
  add_layout_ops(table);
  return table;
}

}  // namespace

template <class T>
Results<T> evaluate(const OpCall& call) {
  static const OpTable<T> table = all_ops<T>();
  ASSAY_CHECK(call.spec != nullptr);
  const auto found = table.find(call.spec->name);
  ASSAY_CHECK(found != table.end());
  return found->second(Call<T>(call));
}

Results<Ball> evaluate_certain(const OpCall& call) {
  Context wanted = context();
  while (true) {
    const ContextScope scope(wanted);
    try {
      return evaluate<Ball>(call);
    } catch (const Undecided&) {
      if (wanted.bits >= wanted.cap_bits) {
        wanted.ties_are_final = true;
      } else {
        wanted.bits *= 2;
      }
    }
  }
}

#define ASSAY_INSTANTIATE(T) template Results<T> evaluate(const OpCall&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
