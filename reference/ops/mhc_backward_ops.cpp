// The call bindings of mhc_backward.h.
#include "reference/ops/mhc_backward.h"

namespace assay::reference {
namespace {

template <class T>
Array<T> optional(const Call<T>& call, const std::string& operand) {
  return call.has(operand) ? call.in(operand) : Array<T>();
}

template <class T>
Results<T> contract_backward(const Call<T>& call) {
  const Shape& shape = call.tensor("x").shape();
  const std::string mode = call.text("mode");
  const Array<T> dy = optional(call, "d_y");
  if (mode == "mean") {
    return Results<T>{{"d_x", dy.size() ? contract_mean_backward(dy, shape[1]) : Array<T>(shape)}};
  }
  if (mode != "learned") {
    throw InputError("stream_contract.backward: attribute mode", "\"" + mode + "\"",
                     "\"mean\" or \"learned\" is allowed");
  }
  for (const char* operand : {"fn", "base", "scale"})
    if (!call.has(operand)) {
      throw InputError(std::string("stream_contract.backward: operand ") + operand, "missing",
                       "mode \"learned\" needs it");
    }
  ContractGradient<T> g =
      contract_learned_backward(call.in("x"), call.in("fn"), call.in("base"), call.in("scale"), call.real("eps"), dy);
  return Results<T>{{"d_x", std::move(g.d_x)},
                    {"d_fn", std::move(g.d_fn)},
                    {"d_base", std::move(g.d_base)},
                    {"d_scale", std::move(g.d_scale)}};
}

}  // namespace

template <class T>
void add_mhc_backward_ops(OpTable<T>& table) {
  table["stream_expand.backward"] = [](const Call<T>& call) {
    return Results<T>{{"d_x", call.has("d_y") ? stream_expand_backward(call.in("d_y"), call.integer("n"))
                                              : Array<T>(call.tensor("x").shape())}};
  };
  table["mhc_mapping.backward"] = [](const Call<T>& call) {
    const MappingOptions options{.norm_eps = call.real("norm_eps"),
                                 .norm_eps_inside_sqrt = call.flag("norm_eps_inside_sqrt"),
                                 .pre_eps = call.real("pre_eps"),
                                 .sinkhorn_eps = call.real("sinkhorn_eps"),
                                 .iterations = call.integer("iterations")};
    MappingGradient<T> g =
        mhc_mapping_backward(call.in("x"), call.in("weight"), call.in("alpha"), call.in("bias"), options,
                             MappingCotangent<T>{optional(call, "d_h_pre"), optional(call, "d_h_post"),
                                                 optional(call, "d_h_res"), optional(call, "d_inverse_rms"),
                                                 optional(call, "d_projection"), optional(call, "d_mapping_logits")});
    return Results<T>{{"d_x", std::move(g.d_x)},
                      {"d_weight", std::move(g.d_weight)},
                      {"d_alpha", std::move(g.d_alpha)},
                      {"d_bias", std::move(g.d_bias)}};
  };
  table["sinkhorn.backward"] = [](const Call<T>& call) {
    return Results<T>{{"d_logits", sinkhorn_backward(call.in("logits"), call.integer("iterations"), call.real("eps"),
                                                     optional(call, "d_h_res"), optional(call, "d_row_sums"),
                                                     optional(call, "d_column_sums"))}};
  };
  table["mhc_aggregate.backward"] = [](const Call<T>& call) {
    AggregateGradient<T> g = mhc_aggregate_backward(call.in("x"), call.in("h_pre"), optional(call, "d_y"),
                                                    call.flag("keep_mappings_in_fp32"));
    return Results<T>{{"d_x", std::move(g.d_x)}, {"d_h_pre", std::move(g.d_h_pre)}};
  };
  table["mhc_mix.backward"] = [](const Call<T>& call) {
    MixGradient<T> g =
        mhc_mix_backward(call.in("residual"), call.in("branch"), call.in("h_post"), call.in("h_res"),
                         optional(call, "branch_bias"), optional(call, "d_y"), call.flag("keep_mappings_in_fp32"));
    Results<T> results{{"d_residual", std::move(g.d_residual)},
                       {"d_branch", std::move(g.d_branch)},
                       {"d_h_post", std::move(g.d_h_post)},
                       {"d_h_res", std::move(g.d_h_res)}};
    if (call.has("branch_bias")) results["d_branch_bias"] = std::move(g.d_branch_bias);
    return results;
  };
  table["stream_contract.backward"] = contract_backward<T>;
}

#define ASSAY_INSTANTIATE(T) template void add_mhc_backward_ops(OpTable<T>&);
ASSAY_FOR_SCALARS(ASSAY_INSTANTIATE)
#undef ASSAY_INSTANTIATE

}  // namespace assay::reference
