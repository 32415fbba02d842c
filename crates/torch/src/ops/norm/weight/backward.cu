T product = 0;
for_each(j) product += (T)grad(j) * (T)v(j);
product = row_sum(product);
const T inverse = (T)1 / (T)norms(0), factor = (T)g(0) * inverse;
for_each(j) grad_v.set(factor * ((T)grad(j) - (T)v(j) * product * inverse * inverse), j);
if (is_first) grad_g.set(product * inverse, 0);
