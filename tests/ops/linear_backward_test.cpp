#include "reference/ops/linear_backward.h"

#include "reference/ops/linear.h"
#include "tests/ops/central_difference_attention.h"

namespace assay::reference {
namespace {

void prove_linear(Shape x_shape, std::int64_t outputs, bool has_bias) {
  Arrays<double> inputs = {random_array(x_shape, 1), random_array({outputs, x_shape.back()}, 2)};
  if (has_bias) inputs.push_back(random_array({outputs}, 3));
  prove_backward(
      inputs,
      [&]<class T>(const Arrays<T>& in) { return Arrays<T>{linear(in[0], in[1], has_bias ? in[2] : Array<T>())}; },
      [&]<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        LinearGradients<T> g = linear_backward(in[0], in[1], has_bias, d[0]);
        Arrays<T> result{g.d_x, g.d_weight};
        if (has_bias) result.push_back(g.d_bias);
        return result;
      });
}

TEST(LinearBackward, gradients_are_those_of_the_product_with_bias) { prove_linear({2, 3, 4}, 5, true); }

TEST(LinearBackward, gradients_are_those_of_the_product_without_bias) { prove_linear({6, 4}, 3, false); }

TEST(LinearBackward, matrices_large_enough_for_fixed_point_agree_too) { prove_linear({9, 10}, 8, true); }

TEST(HeadLinearBackward, gradients_are_those_of_one_matrix_per_head) {
  prove_backward(
      {random_array({4, 3, 5}, 1), random_array({3, 2, 5}, 2)},
      []<class T>(const Arrays<T>& in) { return Arrays<T>{head_linear(in[0], in[1])}; },
      []<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        const HeadLinearGradients<T> g = head_linear_backward(in[0], in[1], d[0]);
        return Arrays<T>{g.d_q, g.d_weight};
      });
}

const Index kOffsets({6}, {0, 0, 3, 3, 7, 7});

TEST(GroupedLinearBackward, gradients_are_those_of_each_group) {
  prove_backward(
      {random_array({7, 4}, 1), random_array({5, 3, 4}, 2)},
      []<class T>(const Arrays<T>& in) { return Arrays<T>{grouped_linear(in[0], kOffsets, in[1])}; },
      []<class T>(const Arrays<T>& in, const Arrays<T>& d) {
        const GroupedLinearGradients<T> g = grouped_linear_backward(in[0], kOffsets, in[1], d[0]);
        return Arrays<T>{g.d_x, g.d_weight};
      });
}

TEST(GroupedLinearBackward, T63_an_empty_group_has_a_weight_gradient_of_exact_zeros) {
  const GroupedLinearGradients<double> g =
      grouped_linear_backward(random_array({7, 4}, 1), kOffsets, random_array({5, 3, 4}, 2), random_array({7, 3}, 3));
  for (const std::int64_t e : {0, 2, 4})
    for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(g.d_weight[e * 12 + i], 0.0);
  EXPECT_NE(g.d_weight[12], 0.0);
  EXPECT_THROW(grouped_linear_backward(random_array({7, 4}, 1), Index({2}, {0, 6}), random_array({1, 3, 4}, 2),
                                       random_array({7, 3}, 3)),
               InputError);
}

TEST(LinearBackward, no_rows_give_zero_weight_gradients) {
  const Array<double> none(Shape{0, 4}), dy(Shape{0, 3});
  const LinearGradients<double> g = linear_backward(none, random_array({3, 4}, 1), true, dy);
  EXPECT_EQ(g.d_x.shape, (Shape{0, 4}));
  EXPECT_EQ(g.d_weight.data, std::vector<double>(12, 0.0));
  EXPECT_EQ(g.d_bias.data, std::vector<double>(3, 0.0));
}

TEST(LinearBackward, bindings_give_a_gradient_for_every_real_input) {
  OpTable<double> table;
  add_linear_backward_ops(table);
  const auto tensor = [](const Array<double>& x) { return Tensor::from_reals(DType::kF64, x.shape, x.data); };
  OpCall call;
  call.inputs = {{"x", tensor(random_array({2, 4}, 1))}, {"weight", tensor(random_array({3, 4}, 2))}};
  Results<double> absent = table.at("linear.backward")(Call<double>(call));
  EXPECT_EQ(absent.size(), 2U);
  EXPECT_EQ(std::get<Array<double>>(absent.at("d_weight")).data, std::vector<double>(12, 0.0));
  call.inputs["bias"] = tensor(random_array({3}, 3));
  call.inputs["d_y"] = tensor(random_array({2, 3}, 4));
  Results<double> all = table.at("linear.backward")(Call<double>(call));
  EXPECT_EQ(std::get<Array<double>>(all.at("d_bias")).shape, (Shape{3}));
  EXPECT_EQ(std::get<Array<double>>(all.at("d_x")).shape, (Shape{2, 4}));
}

}  // namespace
}  // namespace assay::reference
