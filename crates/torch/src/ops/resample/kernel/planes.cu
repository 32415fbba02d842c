const i64 height = y.size($lead$ + 1), width = y.size($lead$ + 2), area = kernel[0] * kernel[1];
    const i64 down = (height + 2 * padding[0] - dilation[0] * (kernel[0] - 1) - 1) / stride[0] + 1;
    const i64 across = (width + 2 * padding[1] - dilation[1] * (kernel[1] - 1) - 1) / stride[1] + 1;
    I at[$lead$ + 2]; for (int d = 0; d < $lead$; ++d) at[d] = i[d];
    T sum = 0;
    for (i64 tap = 0; tap < area; ++tap) {
        const i64 row = i[$lead$ + 1] + padding[0] - tap / kernel[1] * dilation[0];
        const i64 line = i[$lead$ + 2] + padding[1] - tap % kernel[1] * dilation[1];
        if (row < 0 || line < 0 || row % stride[0] != 0 || line % stride[1] != 0 || row / stride[0] >= down || line / stride[1] >= across) continue;
        at[$lead$] = (I)(i[$lead$] * area + tap); at[$lead$ + 1] = (I)(row / stride[0] * across + line / stride[1]);
        sum += (T)x.at(at);
    }
    y.set_at(sum, i);
