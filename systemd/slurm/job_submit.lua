-- Slurm's job_submit plugin: a job that asks for `--partita-sms=MIN` also asks for the GRES `sm:MIN`.
--
-- So Slurm counts the SMs of a node, and a job waits until they are free. Copy this file beside slurm.conf, or its
-- two functions into your own job_submit.lua, and set `JobSubmitPlugins=lua` and `GresTypes=sm`.

-- The SMs that the plugin's option asks for at least; nil without the option.
local function partita_sms(job)
    local option = "^_SLURM_SPANK_OPTION_partita_partita_sms=(%d+)"
    for at = 0, (job.spank_job_env_size or 0) - 1 do
        local sms = string.match(job.spank_job_env[at] or "", option)
        if sms then
            return sms
        end
    end
    return nil
end

-- The list of resources with this number of SMs in the place of any other.
local function with_sms(list, sms)
    local all = {}
    for one in string.gmatch(list or "", "[^,]+") do
        if not string.match(one, "^gres[:/]sm[:=]") then
            table.insert(all, one)
        end
    end
    table.insert(all, "gres:sm:" .. sms)
    return table.concat(all, ",")
end

function slurm_job_submit(job, partitions, uid)
    local sms = partita_sms(job)
    if sms then
        job.tres_per_node = with_sms(job.tres_per_node, sms)
    end
    return slurm.SUCCESS
end

function slurm_job_modify(job, old, partitions, uid)
    return slurm.SUCCESS
end
