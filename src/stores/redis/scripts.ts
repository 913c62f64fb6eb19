import { createHash } from 'node:crypto'

/**
 * What the server runs: one script for each verb, so that each verb is one atomic step of one server.
 *
 * A record is one string: a head of fixed width, and then the parts whose lengths stand in the head.
 *
 *     1-5     once1, the format          24-38   lease end, or end of the answer's life
 *     6       r running, c committed,    39-53   gone at
 *             x rejected                 54-63   attempt
 *     7       b body kept, - none        64-103  bytes of token, fingerprint, id, labels, answer: 8 digits each
 *     8       w awaited, - not           104-    token, fingerprint, id, labels, answer, body
 *     9-23    created at
 *
 * One string takes half the memory of a hash with a field for each part, and it stays readable in `redis-cli`.
 * Times are the server's, in ms. The key's own expiry is set to the same `gone at`: Redis frees the space by itself,
 * and the scripts decide.
 */
export interface Script {
  readonly text: string
  readonly sha: string
}

/** Of the head, in bytes. */
export const HEAD_BYTES = 103
/** Of the part of it that does not depend on the time: attempt and lengths. */
const OWN_HEAD_BYTES = 50
/** The first bytes of every record, and the version of its layout. */
export const FORMAT = 'once1'
/** How a script says that the key holds something else; the start of the server's error. */
export const NOT_OURS = 'ONCEKEYFORMAT'

const NOW = `
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local sub = string.sub
`

/** `record` is what `read` gives; absent, when it is none or gone. */
const load = (read: string): string => `${NOW}
local record = ${read}
if record and record ~= '' then
  if sub(record, 1, 5) ~= '${FORMAT}' then return redis.error_reply('${NOT_OURS} the key holds something else') end
  if now >= tonumber(sub(record, 39, 53)) then record = nil end
else
  record = nil
end
`
const WHOLE = load("redis.call('GET', KEYS[1])")
const HEAD = load(`redis.call('GETRANGE', KEYS[1], 0, ${HEAD_BYTES - 1})`)
const HEAD_AND_TOKEN = load(`redis.call('GETRANGE', KEYS[1], 0, ${HEAD_BYTES - 1} + #ARGV[1])`)

/** An expired answer is not given out: head, token, fingerprint, id and labels only. */
const GIVE = `
local function give(record)
  if sub(record, 6, 6) == 'r' or now < tonumber(sub(record, 24, 38)) then return {now, record} end
  local last = ${HEAD_BYTES}
  for from = 64, 88, 8 do last = last + tonumber(sub(record, from, from + 7)) end
  return {now, sub(record, 1, last)}
end
`

/** Compared inside Redis: the length too, or a longer token that begins alike would pass. */
const FENCE = `
if not record or tonumber(sub(record, 64, 71)) ~= #ARGV[1]
  or sub(record, ${HEAD_BYTES + 1}, ${HEAD_BYTES} + #ARGV[1]) ~= ARGV[1] then return 0 end
`

/** Only when somebody waits: a cluster carries every message to all of its servers. A user without the right to
 * publish loses the push, not the write. */
const wake = (channel: string): string => `
if sub(record, 8, 8) == 'w' then redis.pcall('PUBLISH', ${channel}, KEYS[1]) end
`

/** Goes on where memory is full: what was claimed may be finished, and only new claims are refused. */
const ALLOW_OOM = '#!lua flags=allow-oom\n'

/**
 * The two verbs of every request take any number of records at once: what a server spends on a script is mostly spent
 * on starting it. They share ARGV 1 to 4; from 5 on there is one argument for each key. They return one reply for each:
 * a number, now and a record, or an error's text, so that one record that cannot be used harms no other.
 */
const FOR_EACH = `
local replies = {}
for i = 1, #KEYS do replies[i] = one(KEYS[i], ARGV[i + 4]) end
return replies
`

/**
 * KEYS: records. ARGV: leaseMs, unknownTtlMs, takeover ('1' or ''), nothing; and of each record its bytes from 54 on.
 * Replies with the attempt when acquired; else with now and the record.
 */
export const CLAIM: Script = script(`${NOW}${GIVE}
local lease = now + ARGV[1]
local gone = lease + ARGV[2]
local times = string.format('%015.0f%015.0f', lease, gone)
local head = string.format('${FORMAT}r--%015.0f', now) .. times
local expiry = string.format('%.0f', gone)

local function put(key, record, attempt)
  local done = redis.pcall('SET', key, record, 'PXAT', expiry)
  return done.err or attempt
end

local function known(key, own, record)
  if record == '' then return put(key, head .. own, 1) end
  if sub(record, 1, 5) ~= '${FORMAT}' then return '${NOT_OURS} the key holds something else' end
  if now >= tonumber(sub(record, 39, 53)) then return put(key, head .. own, 1) end
  if sub(record, 6, 6) ~= 'r' then return give(record) end
  local attempt = tonumber(sub(record, 54, 63))
  local fingerprint_at = ${HEAD_BYTES + 1} + tonumber(sub(record, 64, 71))
  local own_fingerprint_at = ${OWN_HEAD_BYTES + 1} + tonumber(sub(own, 11, 18))
  local token = sub(own, ${OWN_HEAD_BYTES + 1}, own_fingerprint_at - 1)
  if sub(record, ${HEAD_BYTES + 1}, fingerprint_at - 1) == token then return attempt end
  if ARGV[3] == '' or now < tonumber(sub(record, 24, 38))
    or sub(record, fingerprint_at, fingerprint_at + tonumber(sub(record, 72, 79)) - 1)
      ~= sub(own, own_fingerprint_at, own_fingerprint_at + tonumber(sub(own, 19, 26)) - 1) then return give(record) end
  return put(key, sub(record, 1, 23) .. times .. string.format('%010d%08d', attempt + 1, #token)
    .. sub(record, 72, ${HEAD_BYTES}) .. token .. sub(record, fingerprint_at), attempt + 1)
end

local function one(key, own)
  local record = redis.pcall('SET', key, head .. own, 'NX', 'GET', 'PXAT', expiry)
  if not record then return 1 end
  if type(record) == 'string' then return known(key, own, record) end
  -- Memory is full, or this is a replica: what is known can still be told.
  local found = redis.pcall('GET', key)
  if type(found) == 'string' then return known(key, own, found) end
  return found and found.err or record.err
end
${FOR_EACH}`)

/**
 * KEYS: records. ARGV: ttlMs, expiredTtlMs, channel, the bodies one behind the other; and for each record state and body
 * flag ('cb', 'c-', 'xb', 'x-'), 10 digits for the bytes of its body, 8 for those of its token, token and answer.
 * Replies with 1 when the answer of this token is kept.
 */
export const SETTLE: Script = script(`${ALLOW_OOM}${NOW}
local expires = now + ARGV[1]
local gone = expires + ARGV[2]
local times = string.format('%015.0f%015.0f', expires, gone)
local expiry = string.format('%.0f', gone)
local body_at = 1

local function one(key, own)
  local body_bytes = tonumber(sub(own, 3, 12))
  local body = sub(ARGV[4], body_at, body_at + body_bytes - 1)
  body_at = body_at + body_bytes
  local record = redis.pcall('GET', key)
  if not record or record == '' then return 0 end
  if type(record) ~= 'string' then return record.err end
  if sub(record, 1, 5) ~= '${FORMAT}' then return '${NOT_OURS} the key holds something else' end
  -- The length too, or a longer token that begins alike would pass.
  local token_bytes = tonumber(sub(own, 13, 20))
  if now >= tonumber(sub(record, 39, 53)) or tonumber(sub(record, 64, 71)) ~= token_bytes
    or sub(record, ${HEAD_BYTES + 1}, ${HEAD_BYTES} + token_bytes) ~= sub(own, 21, 20 + token_bytes) then return 0 end
  if sub(record, 6, 6) ~= 'r' then return 1 end
  local answer = sub(own, 21 + token_bytes)
  local done = redis.pcall('SET', key, '${FORMAT}' .. sub(own, 1, 2) .. '-' .. sub(record, 9, 23) .. times
    .. sub(record, 54, 95) .. string.format('%08d', #answer) .. sub(record, ${HEAD_BYTES + 1}) .. answer .. body,
    'PXAT', expiry)
  if done.err then return done.err end
  if sub(record, 8, 8) == 'w' then redis.pcall('PUBLISH', ARGV[3], key) end
  return 1
end
${FOR_EACH}`)

/** `goneAt` moves along with the lease, keeping its distance. */
const lease = (leaseMs: string): string => `
local lease = now + ${leaseMs}
local gone = lease + tonumber(sub(record, 39, 53)) - tonumber(sub(record, 24, 38))
redis.call('SETRANGE', KEYS[1], 23, string.format('%015.0f%015.0f', lease, gone))
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', gone))
`

/** KEYS: record. ARGV: token, channel. A record that was taken over is given up instead: an earlier owner may have acted. */
export const RELEASE: Script = script(`${ALLOW_OOM}${HEAD_AND_TOKEN}${FENCE}
if sub(record, 6, 6) ~= 'r' then return 0 end
if tonumber(sub(record, 54, 63)) > 1 then
${lease('0')}
else
  redis.call('DEL', KEYS[1])
end
${wake('ARGV[2]')}
return 1
`)

/** KEYS: record. ARGV: token, leaseMs, channel. */
export const RENEW: Script = script(`${ALLOW_OOM}${HEAD_AND_TOKEN}${FENCE}
if sub(record, 6, 6) ~= 'r' then return 0 end
${lease('ARGV[2]')}
if ARGV[2] == '0' then
${wake('ARGV[3]')}
end
return 1
`)

/** KEYS: record. Returns now and the record, or nothing. */
export const READ: Script = script(`${WHOLE}${GIVE}
if record then return give(record) end
return false
`)

/** KEYS: record. ARGV: channel. */
export const FORGET: Script = script(`${HEAD}
if not record then return 0 end
redis.call('UNLINK', KEYS[1])
${wake('ARGV[1]')}
return 1
`)

/** KEYS: record. Labels, headers and body go; status, times and fingerprint stay. */
export const REDACT: Script = script(`${ALLOW_OOM}${WHOLE}
if not record or sub(record, 6, 6) == 'r' then return 0 end
local last = ${HEAD_BYTES}
for from = 64, 80, 8 do last = last + tonumber(sub(record, from, from + 7)) end
local labels = tonumber(sub(record, 88, 95))
local status = string.match(sub(record, last + labels + 1), '^%[(%d+)')
local answer = status and '[' .. status .. ',[]]' or ''
redis.call('SET', KEYS[1], sub(record, 1, 6) .. '-' .. sub(record, 8, 87) .. string.format('%08d%08d', 0, #answer)
  .. sub(record, ${HEAD_BYTES + 1}, last) .. answer, 'KEEPTTL')
return 1
`)

/**
 * KEYS: record. Returns how many ms the lease still runs, 0 when the record is not running, and notes that somebody
 * waits. Where memory is full the note is refused; the waiter then looks again by itself.
 */
export const LOOK: Script = script(`${HEAD}
if not record or sub(record, 6, 6) ~= 'r' then return 0 end
local left = tonumber(sub(record, 24, 38)) - now
if left <= 0 then return 0 end
if sub(record, 8, 8) ~= 'w' then redis.pcall('SETRANGE', KEYS[1], 7, 'w') end
return left
`)

/** KEYS: record. Frees the answer of an expired record. It stays expired, even when the server's clock steps back. */
export const STRIP: Script = script(`${HEAD}
if not record or sub(record, 6, 6) == 'r' or now < tonumber(sub(record, 24, 38)) then return 0 end
local last = ${HEAD_BYTES}
for from = 64, 88, 8 do last = last + tonumber(sub(record, from, from + 7)) end
if redis.call('STRLEN', KEYS[1]) == last then return 0 end
local rest = redis.call('GETRANGE', KEYS[1], ${HEAD_BYTES}, last - 1)
redis.call('SET', KEYS[1], sub(record, 1, 6) .. '--' .. sub(record, 9, 23) .. string.format('%015d', 0)
  .. sub(record, 39, 95) .. string.format('%08d', 0) .. rest, 'PXAT', string.format('%.0f', tonumber(sub(record, 39, 53))))
return 1
`)

function script(text: string): Script {
  return { text, sha: createHash('sha1').update(text).digest('hex') }
}
