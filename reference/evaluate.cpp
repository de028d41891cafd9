#include "reference/evaluate.h"

#include "reference/decide.h"
#include "reference/ops/attention.h"
#include "reference/ops/attention_backward.h"
#include "reference/ops/ffn.h"
#include "reference/ops/ffn_backward.h"
#include "reference/ops/fp8.h"
#include "reference/ops/head.h"
#include "reference/ops/head_backward.h"
#include "reference/ops/indexer.h"
#include "reference/ops/indexer_backward.h"
#include "reference/ops/indexer_loss.h"
#include "reference/ops/kda.h"
#include "reference/ops/kda_backward.h"
#include "reference/ops/layout.h"
#include "reference/ops/linear.h"
#include "reference/ops/linear_backward.h"
#include "reference/ops/mhc.h"
#include "reference/ops/mhc_backward.h"
#include "reference/ops/mhc_layer.h"
#include "reference/ops/norm.h"
#include "reference/ops/norm_backward.h"
#include "reference/ops/router.h"
#include "reference/ops/router_backward.h"
#include "reference/ops/vision.h"
#include "reference/ops/vision_backward.h"
#include "reference/rounding.h"

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
  add_indexer_loss_ops(table);
  add_attention_backward_ops(table);
  add_ffn_backward_ops(table);
  add_head_backward_ops(table);
  add_indexer_backward_ops(table);
  add_kda_backward_ops(table);
  add_linear_backward_ops(table);
  add_mhc_backward_ops(table);
  add_mhc_layer_ops(table);
  add_norm_backward_ops(table);
  add_router_backward_ops(table);
  add_vision_backward_ops(table);
  return table;
}

}  // namespace

template <class T>
Results<T> evaluate(const OpCall& call, const std::map<std::string, Array<T>>& replaced) {
  static const OpTable<T> table = all_ops<T>();
  ASSAY_CHECK(call.spec != nullptr);
  const auto found = table.find(call.spec->name);
  ASSAY_CHECK(found != table.end());
  const OpRounding rounding(call.spec->name);
  return found->second(Call<T>(call, replaced));
}

template <class T>
Results<T> evaluate(const OpCall& call) {
  return evaluate<T>(call, {});
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

#define ASSAY_INSTANTIATE(T)                   \
  template Results<T> evaluate(const OpCall&); \
  template Results<T> evaluate(const OpCall&, const std::map<std::string, Array<T>>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
