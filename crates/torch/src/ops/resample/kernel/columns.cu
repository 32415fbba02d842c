const i64 height = x.size($lead$ + 1), width = x.size($lead$ + 2), area = kernel[0] * kernel[1];
    const i64 across = (width + 2 * padding[1] - dilation[1] * (kernel[1] - 1) - 1) / stride[1] + 1;
    I at[$lead$ + 3]; for (int d = 0; d < $lead$; ++d) at[d] = i[d];
    const i64 tap = i[$column$] % area;
    const i64 row = i[$place$] / across * stride[0] - padding[0] + tap / kernel[1] * dilation[0];
    const i64 line = i[$place$] % across * stride[1] - padding[1] + tap % kernel[1] * dilation[1];
    at[$lead$] = (I)(i[$column$] / area); at[$lead$ + 1] = (I)row; at[$lead$ + 2] = (I)line;
    if (row >= 0 && row < height && line >= 0 && line < width) y.set_at(x.at(at), i); else y.set_at(0, i);
